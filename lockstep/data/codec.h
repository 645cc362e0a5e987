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

// Conversion between the user's structures and the flat elements of a pipeline.
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

/// A row or batch as `torch::data` returns it: `data`, and usually a `target`. Such classes have constructors and
/// therefore no fields that the reflection of structures could find.
template <class T>
concept TorchExampleLike = !is_leaf_v<T> && kind_v<T> == StructureKind::Leaf && requires {
  requires std::is_member_object_pointer_v<decltype(&T::data)>;
};

/// Rows of a DataLoader without a Stack transform: a list in which each example would count as a batch.
template <class T>
inline constexpr bool is_list_of_examples_v = false;
template <class T>
  requires requires { requires std::is_member_object_pointer_v<decltype(&T::data)>; }
inline constexpr bool is_list_of_examples_v<std::vector<T>> = true;

/// Calls `f(data, target)` or `f(data)`.
template <class Example, class F>
decltype(auto) with_example(Example& example, F&& f) {
  if constexpr (requires { example.target; })
    return f(example.data, example.target);
  else
    return f(example.data);
}

// Numbers travel as scalar tensors; these live in a source file to keep factory functions out of this header.
LOCKSTEP_EXPORT at::Tensor scalar_tensor(std::int64_t value, at::ScalarType dtype);
LOCKSTEP_EXPORT at::Tensor scalar_tensor(double value, at::ScalarType dtype);
LOCKSTEP_EXPORT std::int64_t read_integer(const Component& component, std::size_t index);
[[noreturn]] LOCKSTEP_EXPORT void throw_wrong_structure(const std::string& wanted, std::size_t components);

template <class Number>
constexpr at::ScalarType number_dtype() {
  if (std::is_floating_point_v<Number>) return std::is_same_v<Number, float> ? at::kFloat : at::kDouble;
  if (std::is_same_v<Number, bool>) return at::kBool;
  return std::is_same_v<Number, std::int32_t> ? at::kInt : at::kLong;
}

/// Calls `visitor.leaf(x)` for every leaf of a structure, from left to right. Before the parts of a vector it calls
/// `visitor.size(vector)`; maps are left to `visitor.map(map)`.
template <class S, class Visitor>
void visit(S& value, Visitor& visitor) {
  constexpr StructureKind kind = kind_v<S>;
  const auto visit_all = [&](auto&... parts) { (visit(parts, visitor), ...); };
  if constexpr (is_leaf_v<S>) {
    visitor.leaf(value);
  } else if constexpr (kind == StructureKind::Tuple) {
    std::apply(visit_all, value);
  } else if constexpr (kind == StructureKind::Aggregate) {
    lockstep::detail::with_fields(value, visit_all);
  } else if constexpr (kind == StructureKind::Array || kind == StructureKind::Vector) {
    if constexpr (kind == StructureKind::Vector) visitor.size(value);
    for (auto& part : value) visit(part, visitor);
  } else if constexpr (kind == StructureKind::Map || kind == StructureKind::UnorderedMap) {
    visitor.map(value);
  } else if constexpr (TorchExampleLike<S>) {
    with_example(value, visit_all);
  } else {
    static_assert(is_leaf_v<S>,
                  "elements of a dataset are made of tensors, byte strings, numbers and structures of them");
  }
}

template <class Map>
inline constexpr bool has_text_keys_v = std::is_convertible_v<typename Map::key_type, std::string>;

/// Moves the leaves of a structure into an empty element, with the lengths and keys needed to rebuild it.
class LOCKSTEP_EXPORT Encoder {
 public:
  explicit Encoder(Element& element) : element_(element) {}

  template <class S>
  void leaf(S& value) {
    if constexpr (is_dataset_v<S>)
      add(value.stage());
    else if constexpr (std::is_floating_point_v<S>)
      add(scalar_tensor(static_cast<double>(value), number_dtype<S>()));
    else if constexpr (std::is_arithmetic_v<S>)
      add(scalar_tensor(static_cast<std::int64_t>(value), number_dtype<S>()));
    else
      add(std::move(value));
  }

  template <class Container>
  void size(const Container& value) {
    mark(static_cast<std::int64_t>(value.size()));
  }

  template <class Map>
  void map(Map& value) {
    size(value);
    lockstep::detail::for_each_entry(value, [&](const auto& key, const auto&) {
      if constexpr (has_text_keys_v<Map>)
        mark(std::string(key));
      else
        mark(static_cast<std::int64_t>(key));
    });
    lockstep::detail::for_each_entry(value, [&](const auto&, auto& part) { visit(part, *this); });
  }

 private:
  void add(Component component);
  void mark(std::variant<std::int64_t, std::string> length_or_key);

  Element& element_;
  std::shared_ptr<Skeleton> skeleton_;  ///< skeleton of the element; null until there is a mark
};

/// Builds a structure from the components of an element, which it moves from.
class LOCKSTEP_EXPORT Decoder {
 public:
  explicit Decoder(Element& element) : element_(element) {}

  template <class S>
  void leaf(S& value) {
    if constexpr (std::is_floating_point_v<S>) {
      value = static_cast<S>(take_float());
    } else if constexpr (std::is_arithmetic_v<S>) {
      const std::int64_t number = take_integer();
      value = static_cast<S>(number);
      if (!std::is_same_v<S, bool> && !std::is_same_v<S, std::uint64_t> && static_cast<std::int64_t>(value) != number)
        throw_too_large(type_name<S>());
    } else {
      auto* part = std::get_if<std::conditional_t<is_dataset_v<S>, StagePtr, S>>(&next_component());
      if (part == nullptr) throw_other_kind(is_dataset_v<S> ? "a dataset" : type_name<S>());
      value = S(std::move(*part));
    }
  }

  template <class Vector>
  void size(Vector& value) {
    value.resize(static_cast<std::size_t>(next_number()));
  }

  template <class Map>
  void map(Map& value) {
    using Key = typename Map::key_type;
    std::vector<Key> keys;
    for (auto count = next_number(); count > 0; --count) {
      if constexpr (has_text_keys_v<Map>)
        keys.emplace_back(next_key());
      else
        keys.emplace_back(static_cast<Key>(next_number()));
    }
    value.clear();
    for (const Key& key : keys) visit(value[key], *this);
  }

  /// Throws if components are left over.
  template <class S>
  void require_all_taken() const {
    if (component_ != element_.size()) throw_wrong_structure(type_name<S>(), element_.size());
  }

 private:
  double take_float();
  std::int64_t take_integer();
  Component& next_component();
  /// Reports the kind of the component taken last.
  [[noreturn]] void throw_other_kind(const std::string& wanted) const;
  [[noreturn]] void throw_too_large(const std::string& type) const;
  std::int64_t next_number();
  const std::string& next_key();
  const std::variant<std::int64_t, std::string>& next_mark();

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

/// The parts of a type, as a tuple type: those of tuples, pairs and arrays, and the fields of a plain struct.
template <class T>
auto parts_of() {
  constexpr StructureKind kind = kind_v<T>;
  if constexpr (kind == StructureKind::Aggregate)
    return std::type_identity<decltype(lockstep::detail::with_fields(std::declval<T&>(), AsTuple()))>();
  else if constexpr (kind == StructureKind::Tuple || kind == StructureKind::Array)
    return std::type_identity<T>();
  else if constexpr (TorchExampleLike<T>)
    return std::type_identity<decltype(with_example(std::declval<T&>(), AsTuple()))>();
  else
    return std::type_identity<void>();
}
template <class T>
using Parts = typename decltype(parts_of<T>())::type;

/// Whether `f(std::type_identity<Part>())` is true for all parts; stops at the first that returns false.
template <class T, class F>
constexpr bool all_parts(F f) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return (f(std::type_identity<std::tuple_element_t<I, Parts<T>>>()) && ...);
  }
  (std::make_index_sequence<std::tuple_size_v<Parts<T>>>{});
}

/// Whether the type fixes the number of leaves; vectors and maps do not.
template <class T>
constexpr bool has_fixed_leaves() {
  if constexpr (is_leaf_v<T>)
    return true;
  else if constexpr (std::is_void_v<Parts<T>>)
    return false;
  else
    return all_parts<T>([]<class Part>(std::type_identity<Part>) { return has_fixed_leaves<Part>(); });
}
template <class T>
inline constexpr bool has_fixed_leaves_v = has_fixed_leaves<T>();

/// The type of a structure with every leaf L replaced by `Leaf<L>::type`. A plain struct keeps its type.
template <template <class> class Leaf, class T>
struct MapLeaves : Leaf<T> {};
template <template <class> class Leaf, class T>
using MappedLeaves = typename MapLeaves<Leaf, T>::type;
template <template <class> class Leaf, class... T>
struct MapLeaves<Leaf, std::tuple<T...>> : std::type_identity<std::tuple<MappedLeaves<Leaf, T>...>> {};
template <template <class> class Leaf, class A, class B>
struct MapLeaves<Leaf, std::pair<A, B>> : std::type_identity<std::pair<MappedLeaves<Leaf, A>, MappedLeaves<Leaf, B>>> {
};
template <template <class> class Leaf, class T, std::size_t N>
struct MapLeaves<Leaf, std::array<T, N>> : std::type_identity<std::array<MappedLeaves<Leaf, T>, N>> {};
template <template <class> class Leaf, class T>
struct MapLeaves<Leaf, std::vector<T>> : std::type_identity<std::vector<MappedLeaves<Leaf, T>>> {};
template <template <class> class Leaf, class K, class V>
struct MapLeaves<Leaf, std::map<K, V>> : std::type_identity<std::map<K, MappedLeaves<Leaf, V>>> {};
template <template <class> class Leaf, class K, class V>
struct MapLeaves<Leaf, std::unordered_map<K, V>> : std::type_identity<std::unordered_map<K, MappedLeaves<Leaf, V>>> {};

/// A batch of leaves: numbers and tensors become tensors, byte strings become Strings.
template <class T>
struct BatchLeaf : std::conditional<std::is_arithmetic_v<T>, at::Tensor, T> {};
template <>
struct BatchLeaf<std::string> : std::type_identity<Strings> {};

/// One row of a batch.
template <class T>
struct RowLeaf : std::type_identity<T> {};
template <>
struct RowLeaf<Strings> : std::type_identity<std::string> {};

/// Whether MapLeaves finds a type for every part of T. A plain struct keeps its type, so its fields must keep theirs: a
/// `std::string` would have to become Strings.
template <class T, template <class> class Leaf>
constexpr bool can_map_leaves() {
  constexpr StructureKind kind = kind_v<T>;
  if constexpr (is_leaf_v<T>) {
    return true;
  } else if constexpr (!std::is_void_v<Parts<T>>) {
    if (kind == StructureKind::Aggregate && !std::is_same_v<MappedLeaves<Leaf, Parts<T>>, Parts<T>>) return false;
    return all_parts<T>([]<class Part>(std::type_identity<Part>) { return can_map_leaves<Part, Leaf>(); });
  } else if constexpr (kind == StructureKind::Vector) {
    return can_map_leaves<typename T::value_type, Leaf>();
  } else if constexpr (kind == StructureKind::Map || kind == StructureKind::UnorderedMap) {
    return can_map_leaves<typename T::mapped_type, Leaf>();
  } else {
    return true;  // rejected elsewhere
  }
}
template <class T>
inline constexpr bool can_be_batched_v = can_map_leaves<T, BatchLeaf>();
template <class T>
inline constexpr bool has_rows_v = can_map_leaves<T, RowLeaf>();

/// Appends the specs of T's leaves to `specs`.
template <class T>
void append_specs(std::vector<ComponentSpec>& specs) {
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
  } else {
    all_parts<T>([&]<class Part>(std::type_identity<Part>) {
      append_specs<Part>(specs);
      return true;
    });
  }
}

}  // namespace detail

/// Puts the leaves of `value` into `element`.
template <class T>
void encode(T value, Element& element) {
  element.components.clear();
  element.skeleton = nullptr;
  detail::Encoder encoder(element);
  detail::visit(value, encoder);
}

/// Builds the structure from the components of `element`, which are moved from.
template <class T>
T decode(Element& element) {
  static_assert(std::is_default_constructible_v<T>, "elements of a dataset need a default constructor");
  T value{};
  detail::Decoder decoder(element);
  detail::visit(value, decoder);
  decoder.require_all_taken<T>();
  return value;
}

/// The spec of elements of type T before one is read: the kind of each leaf, and full specs of numbers. Empty for
/// vectors and maps, since their type does not fix their length.
template <class T>
ElementSpec spec_of_type() {
  if constexpr (detail::has_fixed_leaves_v<T>) {
    std::vector<ComponentSpec> specs;
    detail::append_specs<T>(specs);
    return {std::move(specs)};
  } else {
    return ElementSpec::unknown();
  }
}

}  // namespace lockstep::data
