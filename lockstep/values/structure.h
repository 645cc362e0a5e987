#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/text.h"
#include "lockstep/values/aggregate.h"
#include "lockstep/values/distributed_fwd.h"
#include "lockstep/values/type_name.h"

// Structures: values that contain other values, to any depth. A structure is a std::tuple, pair, vector, array, map,
// unordered_map or optional, a plain aggregate (`struct Digits { Tensor image, label; }`), or a type with a
// `StructureTraits`. Everything else is a leaf: tensors, IndexedSlices, numbers, strings, PerReplica, Mirrored and
// aggregates that cannot be copied or taken apart (base classes, C arrays, more than 24 fields).
//
// Leaves are visited from left to right, in maps in the order of their keys.
namespace lockstep {

/// The place of a value within a structure, as a chain of steps on the stack of the visit. It costs nothing until its
/// text is needed: "[1]['image']"; the top of a structure is "".
class Path {
 public:
  Path() = default;
  Path(const Path& parent, std::size_t index) : parent_(&parent), index_(index) {}
  template <class Key>
  Path(const Path& parent, const Key* key) : parent_(&parent), key_(key), write_key_(&write_key<Key>) {}

  /// The path as text.
  std::string string() const {
    if (!parent_) return "";
    return parent_->string() + (key_ ? write_key_(key_) : str('[', index_, ']'));
  }

 private:
  template <class Key>
  static std::string write_key(const void* key) {
    if constexpr (std::is_convertible_v<const Key&, std::string>)
      return str("['", *static_cast<const Key*>(key), "']");
    else if constexpr (requires(std::ostream & out, const Key& k) { out << k; })
      return str('[', *static_cast<const Key*>(key), ']');
    else
      return "[...]";
  }

  const Path* parent_ = nullptr;
  std::size_t index_ = 0;
  const void* key_ = nullptr;
  std::string (*write_key_)(const void*) = nullptr;
};

/// Makes your own type a structure. A specialisation has
///
///     template <> struct lockstep::StructureTraits<Tree> {
///       // f(path, leaf) for each leaf
///       template <class T, class F> static void visit(T& tree, const Path& path, F& f);
///       // f(leaf) in place of each leaf
///       template <class F> static Tree map(F& f, const Tree& tree);
///       // as structure_string
///       static std::string describe(const Tree& tree);
///       static bool same_structure(const Tree& a, const Tree& b);
///       // only if a Tree can hold distributed values
///       static Tree select(const Tree& tree, int k);
///     };
template <class T>
struct StructureTraits;

/// Specialise to true for an aggregate that should be treated as one leaf.
template <class T>
inline constexpr bool treat_as_leaf_v = false;

namespace detail {

enum class StructureKind { Leaf, Tuple, Array, Vector, Map, UnorderedMap, Optional, Aggregate, Custom };

template <class T>
concept CustomStructure = requires {
  sizeof(StructureTraits<T>);
};

template <class T>
constexpr StructureKind other_kind() {
  if constexpr (CustomStructure<T>)
    return StructureKind::Custom;
  else if constexpr (treat_as_leaf_v<T> || is_distributed_v<T>)
    return StructureKind::Leaf;
  else if constexpr (has_reachable_fields_v<T>)
    return StructureKind::Aggregate;
  else
    return StructureKind::Leaf;
}

template <class T>
struct KindOf {
  static constexpr StructureKind value = other_kind<T>();
};
template <StructureKind kKind>
struct KindIs {
  static constexpr StructureKind value = kKind;
};
template <class... T>
struct KindOf<std::tuple<T...>> : KindIs<StructureKind::Tuple> {};
template <class A, class B>
struct KindOf<std::pair<A, B>> : KindIs<StructureKind::Tuple> {};
template <class T, std::size_t N>
struct KindOf<std::array<T, N>> : KindIs<StructureKind::Array> {};
template <class T, class A>
struct KindOf<std::vector<T, A>> : KindIs<StructureKind::Vector> {};
template <class K, class V, class C, class A>
struct KindOf<std::map<K, V, C, A>> : KindIs<StructureKind::Map> {};
template <class K, class V, class H, class E, class A>
struct KindOf<std::unordered_map<K, V, H, E, A>> : KindIs<StructureKind::UnorderedMap> {};
template <class T>
struct KindOf<std::optional<T>> : KindIs<StructureKind::Optional> {};

template <class T>
inline constexpr StructureKind kind_v = KindOf<std::remove_cv_t<T>>::value;

/// The entries of an unordered map in the order of their keys.
template <class Map>
auto sorted_entries(Map& map) {
  std::vector<decltype(&*map.begin())> entries;
  entries.reserve(map.size());
  for (auto& entry : map) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](auto* a, auto* b) { return a->first < b->first; });
  return entries;
}

/// Calls `f(key, value)` for each entry in the order of keys.
template <class Map, class F>
void for_each_entry(Map& map, F&& f) {
  if constexpr (kind_v<Map> == StructureKind::UnorderedMap) {
    for (auto* entry : sorted_entries(map)) f(entry->first, entry->second);
  } else {
    for (auto& [key, value] : map) f(key, value);
  }
}

template <class S, class F>
void visit_leaves(S& s, const Path& path, F& f);

template <class F, class... Children>
void visit_children(const Path& path, F& f, Children&... children) {
  [[maybe_unused]] std::size_t i = 0;
  (visit_leaves(children, Path(path, i++), f), ...);
}

template <class S, class F>
void visit_elements(S& elements, const Path& path, F& f) {
  std::size_t i = 0;
  if constexpr (std::is_same_v<typename S::value_type, bool> && kind_v<S> == StructureKind::Vector) {
    for (auto&& bit : elements) {  // std::vector<bool> has no elements to refer to
      bool leaf = bit;
      f(Path(path, i++), leaf);
      if constexpr (!std::is_const_v<S>) bit = leaf;
    }
  } else {
    for (auto& element : elements) visit_leaves(element, Path(path, i++), f);
  }
}

template <class S, class F>
void visit_leaves(S& s, const Path& path, F& f) {
  using enum StructureKind;
  constexpr StructureKind kind = kind_v<S>;
  static_assert(!std::is_array_v<S>, "a C array cannot be part of a structure: use std::array");
  if constexpr (kind == Leaf) {
    f(path, s);
  } else if constexpr (kind == Tuple) {
    std::apply([&](auto&... children) { visit_children(path, f, children...); }, s);
  } else if constexpr (kind == Aggregate) {
    with_fields(s, [&](auto&... children) { visit_children(path, f, children...); });
  } else if constexpr (kind == Array || kind == Vector) {
    visit_elements(s, path, f);
  } else if constexpr (kind == Map || kind == UnorderedMap) {
    for_each_entry(s, [&](const auto& key, auto& value) { visit_leaves(value, Path(path, &key), f); });
  } else if constexpr (kind == Optional) {
    if (s) visit_leaves(*s, path, f);
  } else {
    StructureTraits<std::remove_const_t<S>>::visit(s, path, f);
  }
}

/// Whether a function object takes structures of type S whole, as if they were leaves.
template <class F, class S>
concept TakesWhole = requires {
  requires F::template takes_whole<S>;
};

template <class T, class F, class... Fields>
T rebuild_aggregate(F& f, const Fields&... fields);

template <class F, class S>
auto map_leaves(F& f, const S& s) {
  using enum StructureKind;
  constexpr StructureKind kind = TakesWhole<F, S> ? Leaf : kind_v<S>;
  if constexpr (kind == Leaf) {
    static_assert(!std::is_array_v<S>, "a C array cannot be part of a structure: use std::array");
    static_assert(!std::is_void_v<decltype(f(s))>, "map_structure needs a function that returns the new leaf");
    return f(s);
  } else if constexpr (kind == Tuple) {
    if constexpr (requires { s.second; })
      return std::pair{map_leaves(f, s.first), map_leaves(f, s.second)};
    else
      return std::apply(
          [&](const auto&... parts) { return std::tuple<decltype(map_leaves(f, parts))...>{map_leaves(f, parts)...}; },
          s);
  } else if constexpr (kind == Aggregate) {
    return with_fields(s, [&](const auto&... fields) { return rebuild_aggregate<S>(f, fields...); });
  } else if constexpr (kind == Array) {
    using Element = decltype(map_leaves(f, std::declval<const typename S::value_type&>()));
    return std::apply(
        [&](const auto&... elements) { return std::array<Element, sizeof...(elements)>{map_leaves(f, elements)...}; },
        s);
  } else if constexpr (kind == Vector) {
    using Element = decltype(map_leaves(f, std::declval<const typename S::value_type&>()));
    std::vector<Element> mapped;
    mapped.reserve(s.size());
    for (const typename S::value_type& element : s) mapped.push_back(map_leaves(f, element));
    return mapped;
  } else if constexpr (kind == Map) {
    using Value = decltype(map_leaves(f, std::declval<const typename S::mapped_type&>()));
    std::map<typename S::key_type, Value, typename S::key_compare> mapped(s.key_comp());
    for (const auto& [key, value] : s) mapped.emplace_hint(mapped.end(), key, map_leaves(f, value));
    return mapped;
  } else if constexpr (kind == UnorderedMap) {
    using Value = decltype(map_leaves(f, std::declval<const typename S::mapped_type&>()));
    std::unordered_map<typename S::key_type, Value, typename S::hasher, typename S::key_equal> mapped;
    for_each_entry(s, [&](const auto& key, const auto& value) { mapped.emplace(key, map_leaves(f, value)); });
    return mapped;
  } else if constexpr (kind == Optional) {
    using Value = decltype(map_leaves(f, *s));
    return s ? std::optional<Value>(map_leaves(f, *s)) : std::nullopt;
  } else {
    return StructureTraits<S>::map(f, s);
  }
}

template <class F, class Field>
Field map_field(F& f, const Field& field) {
  static_assert(std::is_convertible_v<decltype(map_leaves(f, field)), Field>,
                "a plain struct keeps its type, so the function must return the type of the field it is given; "
                "use a std::tuple where leaf types change");
  return map_leaves(f, field);
}

template <class T, class F, class... Fields>
T rebuild_aggregate(F& f, const Fields&... fields) {
  return T{map_field(f, fields)...};
}

/// "a, b, c"; a long run of equal parts is written once: "float x 1000".
LOCKSTEP_EXPORT std::string join_parts(const std::vector<std::string>& parts);

template <class S>
std::string describe(const S& s) {
  using enum StructureKind;
  constexpr StructureKind kind = kind_v<S>;
  [[maybe_unused]] std::vector<std::string> parts;
  [[maybe_unused]] const auto add = [&](const auto&... children) { (parts.push_back(describe(children)), ...); };
  if constexpr (kind == Leaf) {
    return type_name<S>();
  } else if constexpr (kind == Tuple) {
    std::apply(add, s);
    return str('(', join_parts(parts), parts.size() == 1 ? ",)" : ")");
  } else if constexpr (kind == Aggregate) {
    with_fields(s, add);
    return str(type_name<S>(), '(', join_parts(parts), ')');
  } else if constexpr (kind == Array || kind == Vector) {
    for (const typename S::value_type& element : s) add(element);
    return str('[', join_parts(parts), ']');
  } else if constexpr (kind == Map || kind == UnorderedMap) {
    for_each_entry(s, [&](const auto& key, const auto& value) { parts.push_back(str(key, ": ", describe(value))); });
    return str('{', join_parts(parts), '}');
  } else if constexpr (kind == Optional) {
    return s ? str("optional(", describe(*s), ')') : "none";
  } else {
    return StructureTraits<S>::describe(s);
  }
}

}  // namespace detail

/// Whether S contains other values; a leaf does not.
template <class S>
inline constexpr bool is_structure_v = detail::kind_v<std::remove_reference_t<S>> != detail::StructureKind::Leaf;

/// Calls `f(leaf)` for every leaf of `s`, with a reference through which a leaf of a mutable structure can be changed.
///
///     for_each_leaf(batch, [](auto& leaf) { ... });
template <class S, class F>
void for_each_leaf(S&& s, F&& f) {
  auto without_path = [&](const Path&, auto& leaf) { f(leaf); };
  detail::visit_leaves(s, Path(), without_path);
}

/// As for_each_leaf, preceded by the place of each leaf: "[1]", "['image']", "[0][2]", "" if `s` is itself a leaf.
/// Fields of aggregates are numbered.
template <class S, class F>
void for_each_leaf_with_path(S&& s, F&& f) {
  auto with_text = [&](const Path& path, auto& leaf) { f(path.string(), leaf); };
  detail::visit_leaves(s, Path(), with_text);
}

/// The same structure with `f(leaf)` in place of every leaf. Leaf types may change within standard containers; an
/// aggregate keeps its type.
///
///     // a pair of int64
///     auto sizes = map_structure([](const Tensor& t) { return t.numel(); }, std::pair{image, label});
template <class F, class S>
auto map_structure(F&& f, const S& s) {
  return detail::map_leaves(f, s);
}

/// A structure in words, for messages: "(tensor, {a: tensor, b: [int, str]})". Two values of one type have the same
/// structure exactly if their texts are equal.
template <class S>
std::string structure_string(const S& s) {
  return detail::describe(s);
}

template <class S>
bool same_structure(const S& a, const S& b);

namespace detail {

template <class S>
bool same_children(const S& a, const S& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    if constexpr (requires { x.second; } &&
                  (kind_v<S> == StructureKind::Map || kind_v<S> == StructureKind::UnorderedMap))
      return x.first == y.first && same_structure(x.second, y.second);
    else
      return same_structure(x, y);
  });
}

}  // namespace detail

/// Whether two values of one type have the same lengths, keys and presence all the way down. Cheap: makes no texts.
template <class S>
bool same_structure(const S& a, const S& b) {
  using enum detail::StructureKind;
  constexpr detail::StructureKind kind = detail::kind_v<S>;
  if constexpr (kind == Tuple) {
    return std::apply(
        [&](const auto&... x) {
          return std::apply([&](const auto&... y) { return (same_structure(x, y) && ...); }, b);
        },
        a);
  } else if constexpr (kind == Aggregate) {
    return detail::with_fields(a, [&](const auto&... x) {
      return detail::with_fields(b, [&](const auto&... y) { return (same_structure(x, y) && ...); });
    });
  } else if constexpr (kind == Array || kind == Map) {
    return detail::same_children(a, b);
  } else if constexpr (kind == Vector) {
    if constexpr (is_structure_v<typename S::value_type>)
      return detail::same_children(a, b);
    else
      return a.size() == b.size();
  } else if constexpr (kind == UnorderedMap) {
    return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& entry) {
             const auto found = b.find(entry.first);
             return found != b.end() && same_structure(entry.second, found->second);
           });
  } else if constexpr (kind == Optional) {
    return a.has_value() == b.has_value() && (!a || same_structure(*a, *b));
  } else if constexpr (kind == Custom) {
    return StructureTraits<S>::same_structure(a, b);
  } else {
    return true;
  }
}

}  // namespace lockstep
