#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/values/type_name.h"

// Functions of a program's own types, such as a loss of a struct of outputs, for code that does not know these types.
namespace lockstep::train::detail {

/// A reference to a value of any type.
class AnyRef {
 public:
  template <class T>
    requires(!std::is_same_v<T, AnyRef>)
  explicit AnyRef(const T& value) : value_(&value), type_(&typeid(T)) {}

  const std::type_info& type() const { return *type_; }
  template <class T>
  bool is() const {
    return *type_ == typeid(T);
  }
  /// It must be a T.
  template <class T>
  const T& as() const {
    return *static_cast<const T*>(value_);
  }

 private:
  const void* value_;
  const std::type_info* type_;
};

/// A value of any type; copies share it.
class AnyValue {
 public:
  template <class T>
    requires(!std::is_same_v<T, AnyValue>)
  explicit AnyValue(T value) : AnyValue(std::make_shared<const T>(std::move(value)), 0) {}

  const AnyRef& ref() const { return ref_; }

 private:
  template <class T>
  AnyValue(std::shared_ptr<const T> owner, int /*unused*/) : owner_(owner), ref_(*owner) {}

  std::shared_ptr<const void> owner_;
  AnyRef ref_;
};

/// "(tensor, Digits)"
inline std::string names_of_types(std::span<const std::type_info* const> types) {
  std::string names;
  for (const std::type_info* type : types) names += (names.empty() ? "" : ", ") + lockstep::type_name(*type);
  return '(' + names + ')';
}
inline std::string names_of_types(std::span<const AnyRef> values) {
  std::vector<const std::type_info*> types;
  for (const AnyRef& value : values) types.push_back(&value.type());
  return names_of_types(types);
}

template <class...>
struct TypeList {};

/// The parameters of a function, a member function or a class with one operator(): a TypeList of values.
template <class F>
struct ParametersOf {};
template <class F>
  requires requires { &F::operator(); }
struct ParametersOf<F> : ParametersOf<decltype(&F::operator())> {};
template <class R, bool kNoexcept, class... A>
struct ParametersOf<R (*)(A...) noexcept(kNoexcept)> : std::type_identity<TypeList<std::remove_cvref_t<A>...>> {};
template <class R, class C, bool kNoexcept, class... A>
struct ParametersOf<R (C::*)(A...) noexcept(kNoexcept)> : ParametersOf<R (*)(A...)> {};
template <class R, class C, bool kNoexcept, class... A>
struct ParametersOf<R (C::*)(A...) const noexcept(kNoexcept)> : ParametersOf<R (*)(A...)> {};

/// The parameter of a function that has one.
template <class T>
std::type_identity<T> only_of(TypeList<T>);

template <class F>
concept HasParameters = requires {
  typename ParametersOf<F>::type;
};

/// What F is called with: one tensor, two tensors, or what its signature names. A TypeList, or void if that is not known.
template <class F>
auto parameters_of() {
  if constexpr (std::is_invocable_v<F&, const at::Tensor&, const at::Tensor&>) {
    return std::type_identity<TypeList<at::Tensor, at::Tensor>>();
  } else if constexpr (std::is_invocable_v<F&, const at::Tensor&>) {
    return std::type_identity<TypeList<at::Tensor>>();
  } else if constexpr (HasParameters<F>) {
    return std::type_identity<typename ParametersOf<F>::type>();
  } else {
    return std::type_identity<void>();
  }
}

template <class F, class List>
inline constexpr bool is_callable_with_v = false;
template <class F, class... A>
inline constexpr bool is_callable_with_v<F, TypeList<A...>> = std::is_invocable_v<F&, const A&...>;

template <class F, class List>
struct ResultWith;
template <class F, class... A>
struct ResultWith<F, TypeList<A...>> : std::type_identity<std::decay_t<std::invoke_result_t<F&, const A&...>>> {};

template <class List>
inline constexpr std::size_t length_v = 0;
template <class... A>
inline constexpr std::size_t length_v<TypeList<A...>> = sizeof...(A);

/// A function that is called with references to values of the types of its parameters.
template <class Result>
class TypedFunction {
 public:
  using Arguments = std::span<const AnyRef>;

  TypedFunction() = default;
  template <class F, class... A>
  TypedFunction(F f, TypeList<A...> /*parameters*/)
      : types_{&typeid(A)...}, call_([f = std::move(f)](Arguments arguments) mutable -> Result {
          return [&]<std::size_t... I>(std::index_sequence<I...>)->Result {
            return Result(f(arguments[I].template as<A>()...));
          }
          (std::index_sequence_for<A...>());
        }) {}

  explicit operator bool() const { return static_cast<bool>(call_); }
  const std::vector<const std::type_info*>& types() const { return types_; }
  bool takes(Arguments arguments) const {
    return std::ranges::equal(arguments, types_,
                              [](const AnyRef& a, const std::type_info* type) { return a.type() == *type; });
  }
  /// The arguments must be what it takes.
  Result operator()(Arguments arguments) const { return call_(arguments); }
  /// The result for the first of these arguments that it takes.
  std::optional<Result> call_with_first(std::initializer_list<std::vector<AnyRef>> choice) const {
    for (const auto& arguments : choice) {
      if (takes(arguments)) return call_(arguments);
    }
    return std::nullopt;
  }

 private:
  std::vector<const std::type_info*> types_;
  std::function<Result(Arguments)> call_;
};

}  // namespace lockstep::train::detail
