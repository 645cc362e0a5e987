#include "lockstep/contrib/tower_values.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/fail_together.h"
#include "lockstep/strategy/tensor_reduction.h"

namespace lockstep::contrib {

TowerValue::TowerValue(const Variable& variable)
    : kind_(!variable.is_distributed()                              ? Kind::Plain
            : variable.synchronization() == Synchronization::OnRead ? Kind::PerDevice
                                                                    : Kind::Mirrored),
      components_(variable.values()) {
  if (kind_ == Kind::PerDevice) whole_size_ = static_cast<std::size_t>(variable.strategy().num_replicas_in_sync());
}

TowerValue::TowerValue(Mirrored<at::Tensor> value) : kind_(Kind::Mirrored), placement_(value.placement()) {
  components_ = std::move(value).release();
}

TowerValue TowerValue::copied() const {
  TowerValue copy = *this;
  copy.components_ = detail::copied(components_);
  copy.items_ = detail::copied(items_);
  return copy;
}

Mirrored<at::Tensor> TowerValue::mirrored() const {
  Mirrored<at::Tensor> value(components_);
  value.set_placement(placement_);
  return value;
}

TowerValue TowerValue::of_tower(int local_tower) const {
  if (kind_ == Kind::Mirrored) return components_.at(mirrored().index_of(local_tower));
  if (kind_ == Kind::PerDevice) return components_.at(static_cast<std::size_t>(local_tower));
  if (kind_ == Kind::Plain) return *this;
  TowerValue items = *this;
  items.items_ = {items_.at(static_cast<std::size_t>(local_tower))};
  items.components_ = items.items_[0];
  return items;
}

at::Tensor TowerValue::tensor() const {
  if (kind_ == Kind::Plain) return components_.at(0);
  if (kind_ == Kind::Mirrored) return mirrored().get();
  const bool is_inside = current_component() >= 0 && !in_update();
  const std::size_t all = whole_size_ == 0 ? components_.size() : whole_size_;
  if (kind_ == Kind::PerDevice && (is_inside || all == 1)) return PerReplica<at::Tensor>(components_).get();
  const char* const parts = kind_ == Kind::PerDevice ? " components" : " results of map";
  throw InvalidArgument(errors::kComponent,
                        {.what = str("a value of ", all, parts, " is used as one"),
                         .help = "reduce it first, or take its parts: strategy.unwrap(value), or value.values()"});
}

std::vector<at::Tensor> TowerValue::unwrap(const Strategy& core, const Devices& of_all_towers) const {
  if (kind_ == Kind::Plain) return components_;
  if (kind_ == Kind::Mirrored) return lockstep::detail::components_of_all(core, of_all_towers, mirrored());
  if (kind_ == Kind::PerDevice) {
    detail::require_of_all_towers(core, "unwrap", components_.size());
    return lockstep::detail::of_all_replicas(core, components_);
  }
  std::vector<at::Tensor> items;
  for (const auto& list : lockstep::detail::lists_of_all_replicas(core, items_))
    items.insert(items.end(), list.begin(), list.end());
  return items;
}

TowerDestinations::TowerDestinations(std::vector<std::string> devices) : devices_(std::move(devices)) {
  if (devices_.empty() || std::ranges::count(devices_, std::string()) > 0)
    throw InvalidArgument(errors::kDestination,
                          {.what = "destinations can not be empty", .help = "name a device, or pass the value itself"});
}

TowerDestinations::TowerDestinations(const TowerValue& value) {
  switch (value.kind()) {
    case TowerValue::Kind::Plain: value_ = value.tensor(); return;
    case TowerValue::Kind::Mirrored: value_ = value.mirrored(); return;
    case TowerValue::Kind::PerDevice: value_ = PerReplica<at::Tensor>(value.local_values()); return;
    case TowerValue::Kind::MapOutput: return;  // all towers, including those without items
  }
}

template <class T>
Mirrored<T> TowerDestinations::deliver(Strategy& core, const Devices& of_all_towers, const T& value) const {
  if (value_) {
    Mirrored<T> copies = core.extended().broadcast_to(value, *value_);
    // By name, even if these are the devices of all towers of this worker.
    if (value_->is_by_name()) copies.set_placement(place_on(value_->resolve(core), core.devices()));
    return copies;
  }
  if (devices_.empty()) {
    const std::vector<int> one_each(static_cast<std::size_t>(core.num_local_replicas()));
    return core.extended().broadcast_to(value, PerReplica<int>(one_each));
  }
  const std::string& here = core.devices()[0];
  Devices names;
  std::vector<T> copies;
  for (const std::string& device : devices_) {
    // Without a task it is the first worker's. Workers have the same devices: one missing here is missing there.
    const DeviceName wanted = require_here(canonicalize(device, to_string(host_for(of_all_towers[0]))));
    if (std::ranges::find(names, to_string(wanted)) != names.end()) continue;
    names.push_back(to_string(wanted));
    const auto is_there = [&](const std::string& tower) {
      const DeviceName name = parse_device(tower);
      return name.job == wanted.job && name.task == wanted.task;
    };
    if (std::none_of(of_all_towers.begin(), of_all_towers.end(), is_there)) {
      throw InvalidArgument(errors::kDevice, {.what = str("no worker of this strategy has the device ", device),
                                              .help = "name a device of worker_devices()"});
    }
    copies.push_back(core.extended().broadcast_to(value, is_there(here) ? names.back() : here)[0]);
  }
  Mirrored<T> result(std::move(copies));
  result.set_placement(place_on(std::move(names), core.devices()));
  return result;
}
template Mirrored<at::Tensor> TowerDestinations::deliver(Strategy&, const Devices&, const at::Tensor&) const;
template Mirrored<IndexedSlices> TowerDestinations::deliver(Strategy&, const Devices&, const IndexedSlices&) const;

namespace detail {
namespace {

template <class... Parts>
[[noreturn]] void throw_not_reducible(const char* operation, std::string help, const Parts&... what) {
  throw InvalidArgument(errors::kNotReducible, {.what = str(what...), .where = operation, .help = std::move(help)});
}

void require_aggregation(VariableAggregation aggregation, const char* operation) {
  if (aggregation != Aggregation::None) return;
  throw_not_reducible(operation, "pass ReduceOp::SUM or MEAN",
                      "the aggregation must be ReduceOp::SUM or MEAN, got NONE");
}

ReduceOp op_of(VariableAggregation aggregation) {
  return aggregation == Aggregation::Sum ? ReduceOp::Sum : ReduceOp::Mean;
}

template <class T>
T of_each_tower(Strategy& core, VariableAggregation aggregation, const PerReplica<T>& value, const char* operation) {
  require_of_all_towers(core, operation, value.size());
  if (aggregation == Aggregation::OnlyFirstReplica) return core.broadcast(value[0]);
  return core.reduce(op_of(aggregation), value);
}

at::Tensor of_map_outputs(Strategy& core, VariableAggregation aggregation, const TowerValue& value,
                          const char* operation) {
  const std::vector<at::Tensor> items = value.unwrap(core, {});
  if (items.empty())
    throw_not_reducible(operation, "give map at least one item", "the results of map over no items cannot be reduced");
  return aggregation == Aggregation::OnlyFirstReplica ? items[0].clone() : ordered_reduce(op_of(aggregation), items);
}

}  // namespace

void require_of_all_towers(const Strategy& core, const char* operation, std::size_t components) {
  const auto wanted = static_cast<std::size_t>(core.num_local_replicas());
  lockstep::detail::or_fail_together(core, operation, [&] {
    if (components != wanted) lockstep::detail::throw_component_count(operation, 0, "PerReplica", components, wanted);
  });
}

at::Tensor aggregate(Strategy& core, VariableAggregation aggregation, const TowerValue& value, const char* operation) {
  require_aggregation(aggregation, operation);
  switch (value.kind()) {
    case TowerValue::Kind::Mirrored:
      throw_not_reducible(operation, "use the value as it is, or reduce what run returned",
                          "a Mirrored value cannot be reduced: it is one value, not one per replica");
    case TowerValue::Kind::Plain: {
      const at::Tensor& plain = value.values().at(0);
      if (!plain.defined())
        throw_not_reducible(operation, "pass a tensor with values", "an undefined tensor cannot be reduced");
      // Zero, once per tower, is zero.
      const bool is_zero = plain.defined() && plain.dim() == 0 && plain.item().toDouble() == 0;
      if (aggregation == Aggregation::Sum && core.num_replicas_in_sync() > 1 && !is_zero) {
        throw_not_reducible(operation, "reduce what run returned, or use MEAN for a value that all replicas share",
                            "a value that is not distributed cannot be reduced with SUM over ",
                            core.num_replicas_in_sync(), " replicas");
      }
      return plain.clone();
    }
    case TowerValue::Kind::MapOutput: return of_map_outputs(core, aggregation, value, operation);
    case TowerValue::Kind::PerDevice: break;
  }
  return of_each_tower(core, aggregation, PerReplica<at::Tensor>(value.local_values()), operation);
}

IndexedSlices aggregate(Strategy& core, VariableAggregation aggregation, const PerReplica<IndexedSlices>& value,
                        const char* operation) {
  require_aggregation(aggregation, operation);
  return of_each_tower(core, aggregation, value, operation);
}

}  // namespace detail
}  // namespace lockstep::contrib
