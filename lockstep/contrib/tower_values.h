#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/contrib/tower_local_variable.h"
#include "lockstep/contrib/variable_aggregation.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/values/per_replica.h"
#include "lockstep/values/reducible.h"

namespace lockstep::contrib {

/// TensorFlow 1.11's name for one component per tower. Over a cluster a process holds the components of its own towers.
template <class T>
using PerDevice = PerReplica<T>;

/// A tensor or number as a program of towers has it: plain, mirrored, or one per tower.
class LOCKSTEP_EXPORT TowerValue {
 public:
  enum class Kind { Plain, Mirrored, PerDevice };

  // NOLINTBEGIN(google-explicit-constructor)
  TowerValue(at::Tensor value) : kind_(Kind::Plain), components_{std::move(value)} {}
  TowerValue(Mirrored<at::Tensor> value) : kind_(Kind::Mirrored), components_(std::move(value).release()) {}
  TowerValue(PerReplica<at::Tensor> value) : kind_(Kind::PerDevice), components_(std::move(value).release()) {}
  /// A tower-local variable is one value per tower, any other of a strategy is mirrored.
  TowerValue(const Variable& variable);
  TowerValue(const TowerLocalVariable& variable) : TowerValue(variable.variable()) {}
  template <class T>
    requires(std::is_arithmetic_v<T>)
  TowerValue(T number) : TowerValue(tensor_of(number)) {}
  template <class T>
    requires(std::is_arithmetic_v<T>)
  TowerValue(const PerReplica<T>& numbers) : TowerValue(numbers.map([](T number) { return tensor_of(number); })) {}
  // NOLINTEND(google-explicit-constructor)

  Kind kind() const { return kind_; }
  /// In tower order; one of a plain value.
  const std::vector<at::Tensor>& values() const { return components_; }
  /// The value as one tensor: the own component inside a tower. InvalidArgument for one per tower elsewhere.
  at::Tensor tensor() const;
  operator at::Tensor() const { return tensor(); }  // NOLINT(google-explicit-constructor): it stands for its tensor

 private:
  template <class T>
  static at::Tensor tensor_of(T number) {
    return std::get<at::Tensor>(lockstep::detail::to_reducible(number, Path()));
  }

  Kind kind_;
  std::vector<at::Tensor> components_;
};

/// Where a value for towers goes: to devices by name, or where the components of a value or variable are. By default to
/// the devices of all towers.
class LOCKSTEP_EXPORT TowerDestinations {
 public:
  TowerDestinations() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  TowerDestinations(std::string device) : devices_{std::move(device)} {}
  TowerDestinations(const char* device) : devices_{device} {}
  TowerDestinations(std::vector<std::string> devices);
  template <std::convertible_to<Destinations> T>
  TowerDestinations(const T& value) : value_(Destinations(value)) {}
  // NOLINTEND(google-explicit-constructor)

  /// Copies for them. Every worker has the value: in place of another worker's device it is on the first of this one.
  Mirrored<at::Tensor> deliver(Strategy& core, const Devices& of_all_towers, const at::Tensor& value) const;

 private:
  std::vector<std::string> devices_;
  std::optional<Destinations> value_;
};

namespace detail {

/// Of `devices`, those of this worker and those that no tower has.
LOCKSTEP_EXPORT Devices own_devices(const Strategy& core, const Devices& of_all_towers, const Devices& devices);

/// The values of all towers, in tower order. Those of other workers come from there: all workers must call it.
LOCKSTEP_EXPORT std::vector<at::Tensor> all_towers(const Strategy& core, const std::vector<at::Tensor>& mine);
LOCKSTEP_EXPORT std::vector<std::string> all_towers(const Strategy& core, const std::vector<std::string>& mine);

/// The tensors that a leaf travels as: of sparse rows the values and the indices.
LOCKSTEP_EXPORT void append_tensors(const std::vector<ReducibleLeaf>& leaves, std::vector<at::Tensor>& tensors);
/// The leaves that `tensors`, from `next` on, came from; `like` says which of them are sparse rows.
LOCKSTEP_EXPORT std::vector<ReducibleLeaf> take_leaves(const std::vector<ReducibleLeaf>& like,
                                                       const std::vector<at::Tensor>& tensors, std::size_t& next);

/// The same for structures of tensors and numbers.
template <class T>
std::vector<T> all_towers(const Strategy& core, const std::vector<T>& mine) {
  if (core.num_workers() == 1) return mine;
  std::vector<at::Tensor> tensors;
  for (const T& value : mine) append_tensors(flatten_reducible(value), tensors);
  const std::vector<ReducibleLeaf> like = flatten_reducible(mine.at(0));
  const std::vector<at::Tensor> all = all_towers(core, tensors);
  std::vector<T> values;
  for (std::size_t next = 0; values.size() < static_cast<std::size_t>(core.num_replicas_in_sync());)
    values.push_back(unflatten_reducible(mine[0], take_leaves(like, all, next)));
  return values;
}

template <class T>
std::vector<T> all_towers(const Strategy& core, const PerReplica<T>& mine) {
  return all_towers(core, std::vector<T>(mine.begin(), mine.end()));
}

/// The one value that the towers' values become, by the rules of TensorFlow 1.11's `reduce`.
LOCKSTEP_EXPORT at::Tensor aggregate(Strategy& core, VariableAggregation aggregation, const TowerValue& value,
                                     const char* operation);

}  // namespace detail
}  // namespace lockstep::contrib
