#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/contrib/variable_aggregation.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/values_of_all.h"
#include "lockstep/values/per_replica.h"
#include "lockstep/values/reducible.h"

namespace lockstep::contrib {

/// TensorFlow 1.11's name for one component per tower. Over a cluster a process has its own towers' components.
template <class T>
using PerDevice = PerReplica<T>;

/// The results of `map` on one device: one per item, in order.
template <class T>
class MapOutput {
 public:
  MapOutput() = default;
  explicit MapOutput(std::vector<T> items) : items_(std::move(items)) {}
  /// The items, in the order of towers.
  const std::vector<T>& get() const { return items_; }
  /// Adds an item.
  void add(T item) { items_.push_back(std::move(item)); }

 private:
  std::vector<T> items_;
};

/// A tensor or number in a program with towers: plain, mirrored, one per tower, or several as results of `map`.
class LOCKSTEP_EXPORT TowerValue {
 public:
  /// The kinds of values.
  enum class Kind { Plain, Mirrored, PerDevice, MapOutput };

  // NOLINTBEGIN(google-explicit-constructor)
  TowerValue(at::Tensor value) : kind_(Kind::Plain), components_{std::move(value)} {}
  TowerValue(Mirrored<at::Tensor> value);
  TowerValue(PerReplica<at::Tensor> value) : kind_(Kind::PerDevice), whole_size_(value.whole_size()) {
    components_ = std::move(value).release();
  }
  /// A tower-local variable is one value per tower, any other of a strategy is mirrored.
  TowerValue(const Variable& variable);
  /// Results of towers: the same variable.
  template <std::derived_from<Variable> T>
  TowerValue(const PerReplica<T>& variable) : TowerValue(static_cast<const Variable&>(variable.get())) {}
  template <class T>
    requires(std::is_arithmetic_v<T>)
  TowerValue(T number) : TowerValue(tensor_of(number)) {}
  template <class T>
    requires(std::is_arithmetic_v<T>)
  TowerValue(const PerReplica<T>& numbers) : TowerValue(numbers.map([](T number) { return tensor_of(number); })) {}
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_same_v<T, at::Tensor>)
  TowerValue(const PerReplica<MapOutput<T>>& outputs) : kind_(Kind::MapOutput) {
    for (const MapOutput<T>& output : outputs) {
      items_.emplace_back();
      for (const T& item : output.get()) items_.back().push_back(tensor_of(item));
      components_.insert(components_.end(), items_.back().begin(), items_.back().end());
    }
  }
  // NOLINTEND(google-explicit-constructor)

  /// The kind of this value.
  Kind kind() const { return kind_; }
  /// In tower order, one if plain: this worker's, or all towers' in a step's outputs.
  const std::vector<at::Tensor>& values() const { return of_all_towers_.empty() ? components_ : of_all_towers_; }
  /// This worker's: the strategy's input.
  const std::vector<at::Tensor>& local_values() const { return components_; }
  /// All towers' values, as `unwrap` returns them; results of `map` are concatenated.
  std::vector<at::Tensor> unwrap(const Strategy& core, const Devices& of_all_towers) const;
  void set_values_of_all_towers(std::vector<at::Tensor> values) { of_all_towers_ = std::move(values); }
  /// With copied components, unaffected by later writes to variables.
  TowerValue copied() const;
  /// The value as one tensor: the own component inside a tower. InvalidArgument for one per tower elsewhere.
  at::Tensor tensor() const;
  operator at::Tensor() const { return tensor(); }  // NOLINT(google-explicit-constructor): it represents its tensor
  Mirrored<at::Tensor> mirrored() const;            ///< only if it is mirrored
  /// The view of a tower of this worker.
  TowerValue of_tower(int local_tower) const;

 private:
  template <class T>
  static at::Tensor tensor_of(const T& value) {
    return std::get<at::Tensor>(lockstep::detail::to_reducible(value, Path()));
  }

  Kind kind_;
  std::vector<at::Tensor> components_;
  std::vector<at::Tensor> of_all_towers_;
  std::vector<std::vector<at::Tensor>> items_;  ///< items of each tower, if they are results of `map`
  std::shared_ptr<const Placement> placement_;  ///< only if it is mirrored
  std::size_t whole_size_ = 0;                  ///< as in PerReplica
};

/// The destination of a value for towers: named devices, the devices of a value or variable, or all towers.
class LOCKSTEP_EXPORT TowerDestinations {
 public:
  TowerDestinations() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  TowerDestinations(std::string device) : TowerDestinations(std::vector{std::move(device)}) {}
  TowerDestinations(const char* device) : TowerDestinations(std::string(device)) {}
  /// A device that is named twice gets one component.
  TowerDestinations(std::vector<std::string> devices);
  /// Without it {"cpu:0", "cpu:1"} would be one string between two pointers.
  TowerDestinations(std::initializer_list<std::string> devices) : TowerDestinations(std::vector(devices)) {}
  TowerDestinations(const TowerValue& value);
  template <std::convertible_to<Destinations> T>
  TowerDestinations(const T& value) : value_(Destinations(value)) {}
  // NOLINTEND(google-explicit-constructor)

  /// Copies of a tensor or of sparse rows for these destinations; for another worker's device, one on this worker's
  /// first.
  template <class T>
  Mirrored<T> deliver(Strategy& core, const Devices& of_all_towers, const T& value) const;

 private:
  std::vector<std::string> devices_;
  std::optional<Destinations> value_;
};

namespace detail {

template <class T>
inline constexpr bool is_reducible_v =
    std::convertible_to<const T&, TowerValue> || std::same_as<T, PerDevice<IndexedSlices>>;

/// Whether T is a variable, or the result of towers that return one.
template <class T>
inline constexpr bool is_of_variable_v = std::derived_from<T, Variable>;
template <class T>
inline constexpr bool is_of_variable_v<PerReplica<T>> = std::derived_from<T, Variable>;

/// The variable returned by towers; any other argument is returned unchanged.
template <class T>
const T& one_of_variable(const T& argument) {
  return argument;
}
template <std::derived_from<Variable> T>
const T& one_of_variable(const PerReplica<T>& argument) {
  return argument.get();
}

/// The same value in new memory.
template <class T>
T copied(T value) {
  for_each_leaf(value, []<class Leaf>(Leaf& leaf) {
    if constexpr (std::is_same_v<Leaf, at::Tensor>) {
      if (leaf.defined()) leaf = leaf.clone();
    } else if constexpr (std::is_same_v<Leaf, IndexedSlices>) {
      leaf = {copied(leaf.values), copied(leaf.indices), leaf.dense_shape};
    }
  });
  return value;
}

/// One value per tower counts as several even if each worker has one tower.
inline std::size_t whole_size_of(const Strategy& core) {
  return core.num_workers() > 1 ? static_cast<std::size_t>(core.num_replicas_in_sync()) : 0;
}
/// Counts a merge call of towers and returns its number; 0 if the strategy has none: each worker is a separate client.
LOCKSTEP_EXPORT int count_merge(const Strategy& core, const std::type_info& function);

/// Throws unless a value has one component for each tower of this worker.
LOCKSTEP_EXPORT void require_of_all_towers(const Strategy& core, const char* operation, std::size_t components);

template <class T>
PerDevice<T> of_towers(const Strategy& core, PerDevice<T> value) {
  value.set_whole_size(whole_size_of(core));
  return value;
}

/// The outputs of all towers that had items.
template <class T>
std::vector<MapOutput<T>> all_outputs(const Strategy& core, const PerReplica<MapOutput<T>>& mine) {
  std::vector<std::vector<T>> lists;
  for (const MapOutput<T>& output : mine) lists.push_back(output.get());
  std::vector<MapOutput<T>> all;
  for (auto& list : lockstep::detail::lists_of_all_replicas(core, lists))
    if (!list.empty()) all.emplace_back(core.num_workers() == 1 ? copied(std::move(list)) : std::move(list));
  return all;
}

/// Reduces the towers' values to one, by the rules of TensorFlow 1.11's `reduce`.
LOCKSTEP_EXPORT at::Tensor aggregate(Strategy& core, VariableAggregation aggregation, const TowerValue& value,
                                     const char* operation);
LOCKSTEP_EXPORT IndexedSlices aggregate(Strategy& core, VariableAggregation aggregation,
                                        const PerReplica<IndexedSlices>& value, const char* operation);

}  // namespace detail
}  // namespace lockstep::contrib

/// A tower sees its own component, wherever the value is in an argument.
template <>
struct lockstep::StructureTraits<lockstep::contrib::TowerValue> {
  using TowerValue = contrib::TowerValue;

  template <class T, class F>
  static void visit(T& value, const Path& path, F& f) {
    f(path, value);
  }
  template <class F>
  static auto map(F& f, const TowerValue& value) {
    return f(value);
  }
  static std::string describe(const TowerValue&) { return "."; }
  static bool same_structure(const TowerValue&, const TowerValue&) { return true; }
  static TowerValue select(const TowerValue& value, int k) { return value.of_tower(k); }
  template <class F>
  static void for_each_distributed(const TowerValue& value, F& f) {
    if (value.kind() == TowerValue::Kind::Mirrored)
      f("Mirrored", value.local_values().size(), value.mirrored().placement().get());
    else if (value.kind() == TowerValue::Kind::PerDevice)
      f("PerDevice", value.local_values().size());
  }
};
