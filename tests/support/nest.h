#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/values/indexed_slices.h"
#include "lockstep/values/reducible.h"
#include "lockstep/values/structure.h"

namespace lockstep {

/// A structure whose shape is only known at run time, like Python's nests of lists, tuples and dicts. Its leaves are
/// None, tensors, IndexedSlices, numbers, strings, opaque objects, variables and distributed values. It is an ordinary
/// value: copies share only tensors and objects.
///
///     Nest batch = Nest::dict({{"image", image}, {"label", Nest::list({label, 3, "cat"})}});
///     batch["label"][1].as<int64_t>();  // 3
class Nest {
 public:
  struct None {};
  /// An opaque value that is only compared and passed on; the same `identity` is the same object.
  struct Object {
    std::string label;
    std::shared_ptr<const void> identity;
  };
  /// A variable or one of its components: only its identity.
  struct Variable {
    std::shared_ptr<const void> whole;         // the same for a variable and its components
    std::vector<std::string> component_names;  // names of the whole variable's components
    std::string name;
    int index = -1;  // index of a component

    bool operator==(const Variable& other) const { return whole == other.whole && index == other.index; }
    bool is_component() const { return index >= 0; }
    Variable component(std::size_t k) const {
      return {whole, component_names, component_names.at(k), static_cast<int>(k)};
    }
    Variable container() const { return {whole, component_names, name}; }
  };
  enum class Kind { List, Tuple, Dict, NamedTuple };
  /// Values within a value. `keys` are the keys of a Dict, in order, or the field names of a NamedTuple; empty for
  /// others.
  struct Container {
    Kind kind;
    std::string type;  // a NamedTuple's
    std::vector<std::string> keys;
    std::vector<Nest> items;
  };
  /// A distributed value: one component per local replica. To visitors it is one leaf.
  struct Components {
    bool mirrored;
    std::vector<Nest> items;
  };

  Nest() = default;
  Nest(at::Tensor tensor) : value_(std::move(tensor)) {}
  Nest(IndexedSlices slices) : value_(std::move(slices)) {}
  Nest(std::string text) : value_(std::move(text)) {}
  Nest(const char* text) : value_(std::string(text)) {}
  Nest(Object object) : value_(std::move(object)) {}
  Nest(Variable variable) : value_(std::move(variable)) {}
  Nest(None) {}
  Nest(Container container) : value_(std::move(container)) {}
  Nest(Components components) : value_(std::move(components)) {}
  template <std::same_as<bool> T>
  Nest(T flag) : value_(flag) {}
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  Nest(T number) : value_(static_cast<int64_t>(number)) {}
  template <std::floating_point T>
  Nest(T number) : value_(static_cast<double>(number)) {}

  static Nest list(std::vector<Nest> items);
  static Nest tuple(std::vector<Nest> items);
  static Nest dict(std::map<std::string, Nest> entries);
  /// A tuple with its own type and named fields, in the given order.
  static Nest named_tuple(std::string type, std::vector<std::pair<std::string, Nest>> fields);
  static Nest per_replica(std::vector<Nest> components);
  static Nest mirrored(std::vector<Nest> components);
  /// An object equal to every other with this identity; without one it equals only its own copies.
  static Nest object(std::string label, std::shared_ptr<const void> identity = nullptr);

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(value_);
  }
  /// The value as one of its kinds: at::Tensor, IndexedSlices, bool, int64_t, double, std::string, Object, Variable,
  /// Container, Components. InvalidArgument if it is of another kind.
  template <class T>
  const T& as() const {
    if (const T* value = std::get_if<T>(&value_)) return *value;
    throw_other_kind(type_name<T>());
  }
  template <class T>
  T& as() {
    return const_cast<T&>(std::as_const(*this).as<T>());
  }

  bool is_none() const { return is<None>(); }
  bool is_container() const { return is<Container>(); }
  bool is_distributed() const { return is<Components>(); }

  /// The values within a container or a distributed value; none for anything else.
  const std::vector<Nest>& items() const;
  std::size_t size() const { return items().size(); }
  const Nest& operator[](std::size_t index) const;
  const Nest& operator[](const std::string& key) const;

  /// Calls `f` with the leaf or container inside.
  template <class F>
  decltype(auto) visit(F&& f) const {
    return std::visit(std::forward<F>(f), value_);
  }
  template <class F>
  decltype(auto) visit(F&& f) {
    return std::visit(std::forward<F>(f), value_);
  }

 private:
  [[noreturn]] void throw_other_kind(const std::string& wanted) const;

  std::variant<None, at::Tensor, IndexedSlices, bool, int64_t, double, std::string, Object, Variable, Container,
               Components>
      value_;
};

/// Prints as Python would: "(Tensor(1.0, shape=(), dtype=float32), {'a': None})".
std::ostream& operator<<(std::ostream& out, const Nest& nest);

/// Whether two leaves are the same: tensors by handle, objects and variables by identity, None, numbers and strings by
/// type and value; distributed values component by component. Containers are never the same.
bool same_object(const Nest& a, const Nest& b);

/// Combines the replicas' structures, following replica 0's: containers are joined item by item. A leaf that is the
/// same object on all replicas is kept, components of one variable become that variable, all others a PerReplica. With
/// `always_wrap` every leaf but a variable becomes a PerReplica. InvalidArgument names the place and the replicas where
/// structures differ.
///
///     regroup({Nest::list({1, "a"}), Nest::list({2, "a"})});  // [PerReplica(1, 2), 'a']
Nest regroup(const std::vector<Nest>& per_replica, bool always_wrap = false);

/// As for other structures; a leaf may also change between a tensor and sparse rows.
Nest unflatten_reducible(const Nest& like, std::vector<ReducibleLeaf> leaves,
                         detail::LeafPurpose purpose = detail::LeafPurpose::Reduce);

/// A Nest is a structure like any other, and can contain distributed values.
template <>
struct StructureTraits<Nest> {
  template <class N, class F>
  static void visit(N& nest, const Path& path, F& f);
  template <class F>
  static Nest map(F& f, const Nest& nest);
  static std::string describe(const Nest& nest);
  static bool same_structure(const Nest& a, const Nest& b);
  static Nest select(const Nest& nest, int k);
  template <class F>
  static void for_each_distributed(const Nest& nest, F& f) {
    if (nest.is_distributed())
      f(nest.as<Nest::Components>().mirrored ? "Mirrored" : "PerReplica", nest.size());
    else
      for (const Nest& item : nest.items()) for_each_distributed(item, f);
  }
  static std::vector<Nest> local_results(const Nest& nest, int replicas);
};

template <class N, class F>
void StructureTraits<Nest>::visit(N& nest, const Path& path, F& f) {
  nest.visit([&](auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Nest::Container>) {
      for (std::size_t i = 0; i < value.items.size(); ++i)
        visit(value.items[i], value.keys.empty() ? Path(path, i) : Path(path, &value.keys[i]), f);
    } else {
      f(path, value);
    }
  });
}

template <class F>
Nest StructureTraits<Nest>::map(F& f, const Nest& nest) {
  return nest.visit([&](const auto& value) -> Nest {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Nest::Container>) {
      Nest::Container mapped = value;
      for (Nest& item : mapped.items) item = map(f, item);
      return mapped;
    } else {
      return f(value);
    }
  });
}

}  // namespace lockstep
