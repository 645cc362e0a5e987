#pragma once

#include <ostream>
#include <string>
#include <string_view>

#include "lockstep/base/vocabulary.h"
#include "lockstep/values/float_text.h"
#include "lockstep/values/structure.h"

namespace at {
class Tensor;
}

namespace lockstep {

/// "Tensor([1. 2.], shape=(2,), dtype=float32)", on one line.
LOCKSTEP_EXPORT void write_value(std::ostream& out, const at::Tensor& tensor);

/// Prints any value for people: tensors on one line, strings 'quoted', structures with all their leaves, other types
/// with their own `<<` if they have one, otherwise with their type's name.
template <class T>
void write_value(std::ostream& out, const T& value);

namespace detail {

template <class... Parts>
void write_parts(std::ostream& out, const Parts&... parts) {
  const char* separator = "";
  ((out << separator, write_value(out, parts), separator = ", "), ...);
}

}  // namespace detail

template <class T>
void write_value(std::ostream& out, const T& value) {
  using enum detail::StructureKind;
  constexpr detail::StructureKind kind = detail::kind_v<T>;
  [[maybe_unused]] const char* separator = "";
  if constexpr (kind == Tuple) {
    out << '(';
    std::apply([&](const auto&... parts) { detail::write_parts(out, parts...); }, value);
    out << (std::tuple_size_v<T> == 1 ? ",)" : ")");
  } else if constexpr (kind == Array || kind == Vector) {
    out << '[';
    for (const typename T::value_type& element : value) {
      out << separator;
      write_value(out, element);
      separator = ", ";
    }
    out << ']';
  } else if constexpr (kind == Map || kind == UnorderedMap) {
    out << '{';
    detail::for_each_entry(value, [&](const auto& key, const auto& entry) {
      out << separator;
      write_value(out, key);
      out << ": ";
      write_value(out, entry);
      separator = ", ";
    });
    out << '}';
  } else if constexpr (kind == Optional) {
    if (value)
      write_value(out, *value);
    else
      out << "None";
  } else if constexpr (std::is_same_v<T, bool>) {
    out << (value ? "True" : "False");
  } else if constexpr (std::is_floating_point_v<T>) {
    out << float_text(static_cast<std::conditional_t<std::is_same_v<T, float>, float, double>>(value));
  } else if constexpr (std::is_same_v<T, signed char> || std::is_same_v<T, unsigned char>) {
    out << +value;  // a small number, not a letter
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out << '\'' << std::string_view(value) << '\'';
  } else if constexpr (requires { out << value; }) {
    out << value;
  } else if constexpr (kind == Aggregate) {
    out << type_name<T>() << '(';
    detail::with_fields(value, [&](const auto&... fields) { detail::write_parts(out, fields...); });
    out << ')';
  } else {
    out << type_name<T>();
  }
}

namespace detail {

template <class Distributed>
std::ostream& write_components(std::ostream& out, const Distributed& value) {
  out << in_words_here(Distributed::kKind) << ":{";
  for (std::size_t k = 0; k < value.size(); ++k) {
    out << (k ? ",\n  " : "\n  ") << k << ": ";
    write_value(out, value[k]);
  }
  return out << "\n}";
}

}  // namespace detail

}  // namespace lockstep
