#pragma once

#include <concepts>
#include <cstddef>
#include <deque>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/values/current_component.h"
#include "lockstep/values/distributed_fwd.h"
#include "lockstep/values/placement.h"

namespace lockstep {

namespace detail {
[[noreturn]] LOCKSTEP_EXPORT void throw_component_out_of_range(const char* kind, std::size_t index, std::size_t size);
[[noreturn]] LOCKSTEP_EXPORT void throw_not_inside_replica(std::size_t size);
/// Throws: a Mirrored on these devices has no component for a replica. `holder`: its owner, if known.
[[noreturn]] LOCKSTEP_EXPORT void throw_not_placed(const Placement& placement, int replica,
                                                   const std::string& holder = "");
}  // namespace detail

/// Shared by PerReplica and Mirrored: one component per local replica, in order. `Self` chooses the component for
/// `get`.
template <template <class> class Self, class T>
class DistributedValues {
 public:
  using value_type = T;
  /// A std::vector, except for bool, whose vector has no elements to refer to.
  using container_type = std::conditional_t<std::is_same_v<T, bool>, std::deque<bool>, std::vector<T>>;

  explicit DistributedValues(std::vector<T> components) {
    if constexpr (std::is_same_v<container_type, std::vector<T>>)
      components_ = std::move(components);
    else
      components_.assign(components.begin(), components.end());
  }

  /// A value with components f(0), f(1), ..., f(size - 1).
  template <class F>
  static Self<T> generate(std::size_t size, F&& f) {
    std::vector<T> components;
    components.reserve(size);
    for (std::size_t k = 0; k < size; ++k) components.push_back(f(k));
    return Self<T>(std::move(components));
  }

  std::size_t size() const { return components_.size(); }

  /// Component k, by value if this is a temporary; InvalidArgument if there is none.
  const T& operator[](std::size_t k) const& {
    check(k);
    return components_[k];
  }
  T& operator[](std::size_t k) & {
    check(k);
    return components_[k];
  }
  T operator[](std::size_t k) && {
    check(k);
    return std::move(components_[k]);
  }

  auto begin() const { return components_.begin(); }
  auto end() const { return components_.end(); }
  auto begin() { return components_.begin(); }
  auto end() { return components_.end(); }

  /// The components in the order of replicas.
  const container_type& values() const& { return components_; }
  container_type values() && { return std::move(components_); }

  /// Moves the components out.
  std::vector<T> release() && {
    if constexpr (std::is_same_v<container_type, std::vector<T>>)
      return std::move(components_);
    else
      return std::vector<T>(components_.begin(), components_.end());
  }

  /// The same kind of value with `f(component)` in place of each component: `batch.map(&Digits::image)`.
  template <class F>
  auto map(F&& f) const {
    using U = std::decay_t<std::invoke_result_t<F&, const T&>>;
    static_assert(!std::is_void_v<U>, "map needs a function that returns the new component");
    return at_my_place(Self<U>::generate(size(), [&](std::size_t k) -> U { return std::invoke(f, components_[k]); }));
  }

  /// The component that this thread represents; see the class for other threads.
  const T& get() const& { return (*this)[self().chosen()]; }
  T get() && { return std::move((*this)[self().chosen()]); }

  /// The component of get() as a value: `const T& x = strategy.run(...)` does not dangle. Call get() for a reference.
  /// An additional operator returning `const T&` would make `x = strategy.run(...)` ambiguous.
  operator T() const& requires std::copy_constructible<T> { return get(); }
  operator T() && { return std::move(*this).get(); }

  /// A value made of this one's components, on the same devices and of as many workers.
  template <class U>
  Self<U> at_my_place(Self<U> made) const {
    if constexpr (requires { made.set_placement(self().placement()); }) made.set_placement(self().placement());
    if constexpr (requires { made.set_whole_size(self().whole_size()); }) made.set_whole_size(self().whole_size());
    return made;
  }

 private:
  const Self<T>& self() const { return static_cast<const Self<T>&>(*this); }
  void check(std::size_t k) const {
    if (k >= size()) [[unlikely]]
      detail::throw_component_out_of_range(Self<T>::kKind, k, size());
  }

  container_type components_;
};

namespace detail {

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

}  // namespace detail

/// Part I of every component, for `auto [loss, hits] = per_replica_of_pairs;`.
template <std::size_t I, template <class> class Kind, detail::TupleLike T>
  requires is_distributed_v<Kind<T>>
auto get(const Kind<T>& value) {
  using std::get;
  return value.map([](const T& component) { return get<I>(component); });
}

template <std::size_t I, template <class> class Kind, detail::TupleLike T>
  requires is_distributed_v<Kind<T>>
auto get(Kind<T>&& value) {
  using std::get;
  using Part = std::tuple_element_t<I, T>;
  return value.at_my_place(
      Kind<Part>::generate(value.size(), [&](std::size_t k) -> Part { return get<I>(std::move(value[k])); }));
}

}  // namespace lockstep
