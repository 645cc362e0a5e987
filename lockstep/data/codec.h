#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/data/element.h"
#include "lockstep/data/element_spec.h"
#include "lockstep/values/structure.h"

// Between the user's structures and the flat elements of a pipeline.
namespace lockstep::data {

template <class T>
class Dataset;

namespace detail {

using lockstep::detail::kind_v;
using lockstep::detail::StructureKind;

template <class T>
inline constexpr bool is_dataset_v = false;
template <class T>
inline constexpr bool is_dataset_v<Dataset<T>> = true;

template <class T>
inline constexpr bool is_leaf_v = std::is_same_v<T, at::Tensor> || std::is_same_v<T, std::string> ||
                                  std::is_same_v<T, Strings> || std::is_arithmetic_v<T> || is_dataset_v<T>;

// Numbers travel as scalar tensors; these live in a source file to keep factory functions out of this header.
LOCKSTEP_EXPORT at::Tensor scalar_tensor(std::int64_t value, at::ScalarType dtype);
LOCKSTEP_EXPORT at::Tensor scalar_tensor(double value, at::ScalarType dtype);
LOCKSTEP_EXPORT std::int64_t read_integer(const Component& component, std::size_t index);
LOCKSTEP_EXPORT double read_float(const Component& component, std::size_t index);
[[noreturn]] LOCKSTEP_EXPORT void throw_wrong_leaf(const char* wanted, const Component& component, std::size_t index);
[[noreturn]] LOCKSTEP_EXPORT void throw_wrong_structure(const std::string& wanted, std::size_t components);

/// Of an element without components, which only an empty batch is whose rows nobody knows.
[[noreturn]] LOCKSTEP_EXPORT void throw_unknown_rows();

template <class Number>
constexpr at::ScalarType number_dtype() {
  if constexpr (std::is_same_v<Number, bool>)
    return at::kBool;
  else if constexpr (std::is_same_v<Number, float>)
    return at::kFloat;
  else if constexpr (std::is_floating_point_v<Number>)
    return at::kDouble;
  else if constexpr (std::is_same_v<Number, std::int32_t>)
    return at::kInt;
  else
    return at::kLong;
}

/// Writes the leaves of a structure behind each other, and the lengths and keys it needs to be built again.
class Encoder {
 public:
  explicit Encoder(Element& element) : element_(element) { element_.components.clear(); }
  ~Encoder() {
    element_.skeleton = skeleton_.marks.empty() ? nullptr : std::make_shared<const Skeleton>(std::move(skeleton_));
  }

  template <class S>
  void write(S&& value) {
    using Type = std::remove_cvref_t<S>;
    constexpr StructureKind kind = kind_v<Type>;
    if constexpr (is_leaf_v<Type>) {
      write_leaf(std::forward<S>(value));
    } else if constexpr (kind == StructureKind::Tuple) {
      std::apply([&](auto&... parts) { (write(std::move(parts)), ...); }, value);
    } else if constexpr (kind == StructureKind::Aggregate) {
      lockstep::detail::with_fields(value, [&](auto&... parts) { (write(std::move(parts)), ...); });
    } else if constexpr (kind == StructureKind::Array) {
      for (auto& part : value) write(std::move(part));
    } else if constexpr (kind == StructureKind::Vector) {
      skeleton_.marks.emplace_back(static_cast<std::int64_t>(value.size()));
      for (auto& part : value) write(std::move(part));
    } else if constexpr (kind == StructureKind::Map || kind == StructureKind::UnorderedMap) {
      skeleton_.marks.emplace_back(static_cast<std::int64_t>(value.size()));
      lockstep::detail::for_each_entry(value, [&](const auto& key, const auto&) {
        if constexpr (std::is_convertible_v<decltype(key), std::string>)
          skeleton_.marks.emplace_back(std::string(key));
        else
          skeleton_.marks.emplace_back(static_cast<std::int64_t>(key));
      });
      lockstep::detail::for_each_entry(value, [&](const auto&, auto& part) { write(std::move(part)); });
    } else {
      static_assert(is_leaf_v<Type>,
                    "elements of a dataset are made of tensors, byte strings, numbers and structures of them");
    }
  }

 private:
  template <class S>
  void write_leaf(S&& value) {
    using Type = std::remove_cvref_t<S>;
    if constexpr (is_dataset_v<Type>)
      element_.components.emplace_back(value.stage());
    else if constexpr (std::is_floating_point_v<Type>)
      element_.components.emplace_back(scalar_tensor(static_cast<double>(value), number_dtype<Type>()));
    else if constexpr (std::is_arithmetic_v<Type>)
      element_.components.emplace_back(scalar_tensor(static_cast<std::int64_t>(value), number_dtype<Type>()));
    else
      element_.components.emplace_back(std::forward<S>(value));
  }

  Element& element_;
  Skeleton skeleton_;
};

/// Builds a structure from the components of an element, which it moves from.
class Decoder {
 public:
  explicit Decoder(Element& element) : element_(element) {}

  template <class S>
  void read(S& value) {
    constexpr StructureKind kind = kind_v<S>;
    if constexpr (is_leaf_v<S>) {
      read_leaf(value);
    } else if constexpr (kind == StructureKind::Tuple) {
      std::apply([&](auto&... parts) { (read(parts), ...); }, value);
    } else if constexpr (kind == StructureKind::Aggregate) {
      lockstep::detail::with_fields(value, [&](auto&... parts) { (read(parts), ...); });
    } else if constexpr (kind == StructureKind::Array) {
      for (auto& part : value) read(part);
    } else if constexpr (kind == StructureKind::Vector) {
      value.resize(static_cast<std::size_t>(std::get<std::int64_t>(next_mark())));
      for (auto& part : value) read(part);
    } else if constexpr (kind == StructureKind::Map || kind == StructureKind::UnorderedMap) {
      const auto count = std::get<std::int64_t>(next_mark());
      std::vector<typename S::key_type> keys;
      for (std::int64_t i = 0; i < count; ++i) {
        if constexpr (std::is_convertible_v<typename S::key_type, std::string>)
          keys.emplace_back(std::get<std::string>(next_mark()));
        else
          keys.emplace_back(static_cast<typename S::key_type>(std::get<std::int64_t>(next_mark())));
      }
      value.clear();
      for (const auto& key : keys) read(value[key]);
    } else {
      static_assert(is_leaf_v<S>,
                    "elements of a dataset are made of tensors, byte strings, numbers and structures of them");
    }
  }

  /// Throws if components are left over.
  template <class S>
  void finish(const S&) {
    if (component_ != element_.size()) throw_wrong_structure(type_name<S>(), element_.size());
  }

 private:
  const std::variant<std::int64_t, std::string>& next_mark() {
    if (!element_.skeleton || mark_ >= element_.skeleton->marks.size())
      throw_wrong_structure("a structure with vectors or maps", element_.size());
    return element_.skeleton->marks[mark_++];
  }

  template <class S>
  void read_leaf(S& value) {
    if (element_.size() == 0) throw_unknown_rows();
    if (component_ >= element_.size()) throw_wrong_structure("a larger structure", element_.size());
    const std::size_t index = component_++;
    Component& component = element_.components[index];
    if constexpr (is_dataset_v<S>) {
      auto* stage = std::get_if<StagePtr>(&component);
      if (stage == nullptr) throw_wrong_leaf("a dataset", component, index);
      value = S(std::move(*stage));
    } else if constexpr (std::is_floating_point_v<S>) {
      value = static_cast<S>(read_float(component, index));
    } else if constexpr (std::is_arithmetic_v<S>) {
      const std::int64_t number = read_integer(component, index);
      value = static_cast<S>(number);
      if (!std::is_same_v<S, bool> && !std::is_same_v<S, std::uint64_t> && static_cast<std::int64_t>(value) != number) {
        throw_wrong_leaf(("a number that fits " + type_name<S>()).c_str(), component, index);
      }
    } else {
      auto* leaf = std::get_if<S>(&component);
      if (leaf == nullptr) throw_wrong_leaf(type_name<S>().c_str(), component, index);
      value = std::move(*leaf);
    }
  }

  Element& element_;
  std::size_t component_ = 0;
  std::size_t mark_ = 0;
};

struct AsTuple {
  template <class... Part>
  std::tuple<std::remove_cvref_t<Part>...> operator()(Part&... parts) const {
    return {parts...};
  }
};
/// The fields of a plain struct, as a tuple.
template <class T>
using FieldsOf = decltype(lockstep::detail::with_fields(std::declval<T&>(), AsTuple()));

/// How many leaves a type has; nothing for types whose values differ in it.
template <class T>
constexpr std::optional<std::size_t> static_leaf_count() {
  constexpr StructureKind kind = kind_v<T>;
  if constexpr (is_leaf_v<T>) {
    return 1;
  } else if constexpr (kind == StructureKind::Tuple) {
    return []<std::size_t... I>(std::index_sequence<I...>)->std::optional<std::size_t> {
      std::size_t sum = 0;
      bool known = true;
      const auto add = [&](std::optional<std::size_t> count) { count ? (void)(sum += *count) : (void)(known = false); };
      (add(static_leaf_count<std::tuple_element_t<I, T>>()), ...);
      return known ? std::optional(sum) : std::nullopt;
    }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  } else if constexpr (kind == StructureKind::Aggregate) {
    return static_leaf_count<FieldsOf<T>>();
  } else if constexpr (kind == StructureKind::Array) {
    const auto each = static_leaf_count<typename T::value_type>();
    return each ? std::optional(*each * std::tuple_size_v<T>) : std::nullopt;
  } else {
    return std::nullopt;
  }
}

/// The type of a batch of T: numbers and tensors become tensors, byte strings become Strings.
template <class T, class = void>
struct BatchOf {
  using type = T;
};
template <class T>
struct BatchOf<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
  using type = at::Tensor;
};
template <>
struct BatchOf<std::string> {
  using type = Strings;
};
template <class... T>
struct BatchOf<std::tuple<T...>> {
  using type = std::tuple<typename BatchOf<T>::type...>;
};
template <class A, class B>
struct BatchOf<std::pair<A, B>> {
  using type = std::pair<typename BatchOf<A>::type, typename BatchOf<B>::type>;
};
template <class T, std::size_t N>
struct BatchOf<std::array<T, N>> {
  using type = std::array<typename BatchOf<T>::type, N>;
};
template <class T>
struct BatchOf<std::vector<T>> {
  using type = std::vector<typename BatchOf<T>::type>;
};
template <class K, class V>
struct BatchOf<std::map<K, V>> {
  using type = std::map<K, typename BatchOf<V>::type>;
};
template <class K, class V>
struct BatchOf<std::unordered_map<K, V>> {
  using type = std::unordered_map<K, typename BatchOf<V>::type>;
};

/// The type of one row of a batch of type T.
template <class T>
struct RowOf {
  using type = T;
};
template <>
struct RowOf<Strings> {
  using type = std::string;
};
template <class... T>
struct RowOf<std::tuple<T...>> {
  using type = std::tuple<typename RowOf<T>::type...>;
};
template <class A, class B>
struct RowOf<std::pair<A, B>> {
  using type = std::pair<typename RowOf<A>::type, typename RowOf<B>::type>;
};
template <class T, std::size_t N>
struct RowOf<std::array<T, N>> {
  using type = std::array<typename RowOf<T>::type, N>;
};
template <class T>
struct RowOf<std::vector<T>> {
  using type = std::vector<typename RowOf<T>::type>;
};
template <class K, class V>
struct RowOf<std::map<K, V>> {
  using type = std::map<K, typename RowOf<V>::type>;
};
template <class K, class V>
struct RowOf<std::unordered_map<K, V>> {
  using type = std::unordered_map<K, typename RowOf<V>::type>;
};

/// Whether batching (`Of` = BatchOf) or taking rows (RowOf) finds a type for every part of T. A plain struct stays what
/// it is, so its fields must, too: a `std::string` would have to become Strings.
template <class T, template <class...> class Of>
constexpr bool has_type_for_all();

template <class T, template <class...> class Of, std::size_t... I>
constexpr bool parts_have_types(std::index_sequence<I...>) {
  return (has_type_for_all<std::tuple_element_t<I, T>, Of>() && ...);
}

template <class T, template <class...> class Of>
constexpr bool has_type_for_all() {
  constexpr StructureKind kind = kind_v<T>;
  if constexpr (is_leaf_v<T>) {
    return true;
  } else if constexpr (kind == StructureKind::Aggregate) {
    return std::is_same_v<typename Of<FieldsOf<T>>::type, FieldsOf<T>> && has_type_for_all<FieldsOf<T>, Of>();
  } else if constexpr (kind == StructureKind::Tuple) {
    return parts_have_types<T, Of>(std::make_index_sequence<std::tuple_size_v<T>>{});
  } else if constexpr (kind == StructureKind::Array || kind == StructureKind::Vector) {
    return has_type_for_all<typename T::value_type, Of>();
  } else if constexpr (kind == StructureKind::Map || kind == StructureKind::UnorderedMap) {
    return has_type_for_all<typename T::mapped_type, Of>();
  } else {
    return true;  // refused elsewhere
  }
}
template <class T>
inline constexpr bool can_be_batched_v = has_type_for_all<T, BatchOf>();
template <class T>
inline constexpr bool has_rows_v = has_type_for_all<T, RowOf>();

/// Puts what the type T says about its leaves behind `specs`; false if it does not even say how many there are.
template <class T>
bool append_spec_of_type(std::vector<ComponentSpec>& specs) {
  constexpr StructureKind kind = kind_v<T>;
  if constexpr (std::is_same_v<T, at::Tensor>) {
    specs.push_back({ComponentSpec::Kind::Tensor});
  } else if constexpr (std::is_same_v<T, std::string>) {
    specs.push_back(ComponentSpec::bytes());
  } else if constexpr (std::is_same_v<T, Strings>) {
    specs.push_back(ComponentSpec::bytes(PartialShape({PartialShape::kUnknown})));
  } else if constexpr (std::is_arithmetic_v<T>) {
    specs.push_back(ComponentSpec::tensor(number_dtype<T>(), PartialShape({})));
  } else if constexpr (is_dataset_v<T>) {
    specs.push_back(ComponentSpec::dataset());
  } else if constexpr (kind == StructureKind::Aggregate) {
    return append_spec_of_type<FieldsOf<T>>(specs);
  } else if constexpr (kind == StructureKind::Tuple) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return (append_spec_of_type<std::tuple_element_t<I, T>>(specs) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  } else if constexpr (kind == StructureKind::Array) {
    for (std::size_t i = 0; i < std::tuple_size_v<T>; ++i)
      if (!append_spec_of_type<typename T::value_type>(specs)) return false;
  } else {
    return false;
  }
  return true;
}

}  // namespace detail

/// Puts the leaves of `value` into `element`.
template <class T>
void encode(T value, Element& element) {
  detail::Encoder(element).write(std::move(value));
}

/// The structure that the components of `element` make up; they are moved from.
template <class T>
T decode(Element& element) {
  static_assert(std::is_default_constructible_v<T>, "elements of a dataset need a default constructor");
  T value{};
  detail::Decoder decoder(element);
  decoder.read(value);
  decoder.finish(value);
  return value;
}

/// What is known of elements of type T before there is one: the kind of each leaf, and all about numbers. Nothing for
/// vectors and maps, whose lengths the type does not say.
template <class T>
ElementSpec spec_of_type() {
  std::vector<ComponentSpec> specs;
  return detail::append_spec_of_type<T>(specs) ? ElementSpec{std::move(specs)} : ElementSpec::unknown();
}

}  // namespace lockstep::data
