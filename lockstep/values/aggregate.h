#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

// Accesses the fields of a plain aggregate without a macro.
//
// The number of fields is the largest number of braced initialisers that the type accepts, each an object that claims
// to convert to anything. Given that number, a structured binding of the same length names the fields.
//
// Two kinds of aggregates would mislead the count and are recognised first: those with a base class (it takes an
// initialiser, but no binding) and those with a C array (each element takes one). Both are leaves.
namespace lockstep::detail {

inline constexpr std::size_t kMaxFields = 24;

/// Converts to any type except the aggregate itself, which would be a copy rather than its first field.
template <class Aggregate>
struct AnyField {
  template <class Field>
    requires(!std::is_same_v<Field, Aggregate>)
  operator Field() const noexcept {
    __builtin_unreachable();  // has a body only because clang warns about types with internal linkage otherwise
  }
};

template <class Aggregate>
struct AnyBase {
  template <class Base>
    requires(std::is_base_of_v<Base, Aggregate> && !std::is_same_v<Base, Aggregate>)
  operator Base() const noexcept { __builtin_unreachable(); }
};

struct NoField {};

/// An initialiser that only a base class accepts; a field that accepts anything (std::any) accepts NoField too.
template <class T>
constexpr bool has_base() {
  return requires { T{AnyBase<T>{}}; }
  &&!requires { T{NoField{}}; };
}

template <class T, std::size_t>
using AnyFieldAt = AnyField<T>;

template <class T, std::size_t... I>
constexpr bool accepts(std::index_sequence<I...>) {
  return requires { T{AnyFieldAt<T, I>{}...}; };
}

template <class T, std::size_t... Before, std::size_t... After>
constexpr bool accepts_empty_braces_between(std::index_sequence<Before...>, std::index_sequence<After...>) {
  return requires { T{AnyFieldAt<T, Before>{}..., {}, AnyFieldAt<T, After>{}...}; };
}

/// Accepted counts form one range: it starts after the last field without a default and ends with the last field.
template <class T, std::size_t N = 0, bool found = false>
constexpr std::size_t field_count() {
  if constexpr (N > kMaxFields + 1)
    return N;
  else if constexpr (accepts<T>(std::make_index_sequence<N>{}))
    return field_count<T, N + 1, true>();
  else if constexpr (found)
    return N - 1;
  else
    return field_count<T, N + 1, false>();
}

/// Empty braces initialise one whole field, so fewer initialisers may follow them if it is an array.
template <class T, std::size_t Count, std::size_t At, std::size_t Following>
constexpr bool is_array_field() {
  if constexpr (accepts_empty_braces_between<T>(std::make_index_sequence<At>{}, std::make_index_sequence<Following>{}))
    return Following + At + 1 < Count;
  else if constexpr (Following == 0)
    return false;
  else
    return is_array_field<T, Count, At, Following - 1>();
}

template <class T, std::size_t Count, std::size_t... At>
constexpr bool has_array_field(std::index_sequence<At...>) {
  return (is_array_field<T, Count, At, Count - At - 1>() || ...);
}

template <class T>
constexpr bool has_reachable_fields() {
  if constexpr (!std::is_class_v<T> || !std::is_aggregate_v<T> || !std::is_copy_constructible_v<T>) {
    return false;
  } else if constexpr (std::is_empty_v<T>) {
    return true;
  } else if constexpr (has_base<T>()) {
    return false;
  } else {
    constexpr std::size_t count = field_count<T>();
    if constexpr (count == 0 || count > kMaxFields)
      return false;
    else
      return !has_array_field<T, count>(std::make_index_sequence<count>{});
  }
}

/// Whether `with_fields` supports T.
template <class T>
inline constexpr bool has_reachable_fields_v = has_reachable_fields<T>();

template <class T>
constexpr std::size_t reachable_field_count() {
  if constexpr (std::is_empty_v<T>)
    return 0;
  else
    return field_count<T>();
}

/// Calls `f(first, second, ...)` with references to the fields of `t`.
template <class T, class F>
decltype(auto) with_fields(T& t, F&& f) {
  constexpr std::size_t count = reachable_field_count<std::remove_const_t<T>>();
  if constexpr (count == 0) {
    return f();
  } else if constexpr (count == 1) {
    auto& [f0] = t;
    return f(f0);
  } else if constexpr (count == 2) {
    auto& [f0, f1] = t;
    return f(f0, f1);
  } else if constexpr (count == 3) {
    auto& [f0, f1, f2] = t;
    return f(f0, f1, f2);
  } else if constexpr (count == 4) {
    auto& [f0, f1, f2, f3] = t;
    return f(f0, f1, f2, f3);
  } else if constexpr (count == 5) {
    auto& [f0, f1, f2, f3, f4] = t;
    return f(f0, f1, f2, f3, f4);
  } else if constexpr (count == 6) {
    auto& [f0, f1, f2, f3, f4, f5] = t;
    return f(f0, f1, f2, f3, f4, f5);
  } else if constexpr (count == 7) {
    auto& [f0, f1, f2, f3, f4, f5, f6] = t;
    return f(f0, f1, f2, f3, f4, f5, f6);
  } else if constexpr (count == 8) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7);
  } else if constexpr (count == 9) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8);
  } else if constexpr (count == 10) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9);
  } else if constexpr (count == 11) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10);
  } else if constexpr (count == 12) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11);
  } else if constexpr (count == 13) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12);
  } else if constexpr (count == 14) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13);
  } else if constexpr (count == 15) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14);
  } else if constexpr (count == 16) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15);
  } else if constexpr (count == 17) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16);
  } else if constexpr (count == 18) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17);
  } else if constexpr (count == 19) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18);
  } else if constexpr (count == 20) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19);
  } else if constexpr (count == 21) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20);
  } else if constexpr (count == 22) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21);
  } else if constexpr (count == 23) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22);
  } else if constexpr (count == 24) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22,
           f23] = t;
    return f(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22,
             f23);
  }
}

}  // namespace lockstep::detail
