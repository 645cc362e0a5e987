#pragma once

#include "lockstep/values/per_replica.h"
#include "lockstep/values/structure.h"

// One replica's view of an argument: its own component of every distributed value, everything else unchanged.
namespace lockstep {

namespace detail {

template <class T>
concept SelectsItself = requires(const T& t) {
  StructureTraits<T>::select(t, 0);
};

/// Whether T, or an element of a standard container T at any depth, satisfies `Is`.
template <template <class> class Is, class T>
struct Contains : Is<T> {};
template <template <class> class Is, class... T>
struct Contains<Is, std::tuple<T...>> : std::disjunction<Contains<Is, T>...> {};
template <template <class> class Is, class A, class B>
struct Contains<Is, std::pair<A, B>> : std::disjunction<Contains<Is, A>, Contains<Is, B>> {};
template <template <class> class Is, class T, std::size_t N>
struct Contains<Is, std::array<T, N>> : Contains<Is, T> {};
template <template <class> class Is, class T, class A>
struct Contains<Is, std::vector<T, A>> : Contains<Is, T> {};
template <template <class> class Is, class K, class V, class C, class A>
struct Contains<Is, std::map<K, V, C, A>> : Contains<Is, V> {};
template <template <class> class Is, class K, class V, class H, class E, class A>
struct Contains<Is, std::unordered_map<K, V, H, E, A>> : Contains<Is, V> {};
template <template <class> class Is, class T>
struct Contains<Is, std::optional<T>> : Contains<Is, T> {};

template <class T>
struct IsOrHoldsDistributed : std::bool_constant<is_distributed_v<T> || SelectsItself<T>> {};

}  // namespace detail

/// Whether `select_component` changes an A: it is a distributed value, a standard container of some at any depth, or a
/// structure type that declares that it can contain them. Fields of aggregates are not searched: their types are fixed.
template <class A>
inline constexpr bool contains_distributed_v =
    detail::Contains<detail::IsOrHoldsDistributed, std::remove_cvref_t<A>>::value;

/// Component k of `a`: `const T&` for a PerReplica<T> or Mirrored<T>; a container is rebuilt with components in place
/// of its distributed values; anything else is `a` itself, by reference. InvalidArgument if there is no component k.
///
///     select_component(std::pair{PerReplica<int>({1, 2}), 10}, 1);  // pair{2, 10}
template <class A>
decltype(auto) select_component(const A& a, int k);

namespace detail {

struct Selector {
  int k;

  template <class S>
  static constexpr bool takes_whole = SelectsItself<S>;

  template <class T>
  auto operator()(const T& leaf) const {
    return select_component(leaf, k);
  }
};

}  // namespace detail

template <class A>
decltype(auto) select_component(const A& a, int k) {
  if constexpr (is_distributed_v<A>)
    return a[a.index_of(k)];
  else if constexpr (detail::SelectsItself<A>)
    return StructureTraits<A>::select(a, k);
  else if constexpr (contains_distributed_v<A>)
    return map_structure(detail::Selector{k}, a);
  else
    return (a);
}

/// Calls `f(kind, components)` for every distributed value in `a`, with the name of its kind: "PerReplica"; and
/// `f(kind, components, placement)` for a Mirrored on named devices.
template <class A, class F>
void for_each_distributed([[maybe_unused]] const A& a, [[maybe_unused]] F& f) {
  using enum detail::StructureKind;
  constexpr detail::StructureKind kind = detail::kind_v<A>;
  [[maybe_unused]] const auto each = [&](const auto&... parts) { (for_each_distributed(parts, f), ...); };
  if constexpr (is_distributed_v<A>) {
    if constexpr (requires { a.placement(); })
      f(A::kKind, a.size(), a.placement().get());
    else
      f(A::kKind, a.size());
  } else if constexpr (requires { StructureTraits<A>::for_each_distributed(a, f); }) {
    StructureTraits<A>::for_each_distributed(a, f);
  } else if constexpr (!contains_distributed_v<A>) {
    return;
  } else if constexpr (kind == Tuple) {
    std::apply(each, a);
  } else if constexpr (kind == Optional) {
    if (a) each(*a);
  } else if constexpr (kind == Map || kind == UnorderedMap) {
    for (const auto& entry : a) each(entry.second);
  } else if constexpr (kind == Array || kind == Vector) {
    for (const auto& element : a) each(element);
  }
}

/// The type a replica sees for an argument of type A, without reference.
template <class A>
using selected_t = std::decay_t<decltype(select_component(std::declval<const std::remove_cvref_t<A>&>(), 0))>;

}  // namespace lockstep
