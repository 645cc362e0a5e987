#include "lockstep/contrib/tower_values.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::contrib {

TowerValue::TowerValue(const Variable& variable)
    : kind_(!variable.is_distributed()                              ? Kind::Plain
            : variable.synchronization() == Synchronization::OnRead ? Kind::PerDevice
                                                                    : Kind::Mirrored),
      components_(variable.values()) {}

at::Tensor TowerValue::tensor() const {
  switch (kind_) {
    case Kind::Plain: return components_.at(0);
    case Kind::Mirrored: return lockstep::Mirrored<at::Tensor>(components_).get();
    case Kind::PerDevice: break;
  }
  return PerReplica<at::Tensor>(components_).get();
}

TowerDestinations::TowerDestinations(std::vector<std::string> devices) : devices_(std::move(devices)) {
  if (devices_.empty())
    throw InvalidArgument(errors::kDestination,
                          {.what = "destinations can not be empty", .help = "name a device, or pass the value itself"});
}

Mirrored<at::Tensor> TowerDestinations::deliver(Strategy& core, const Devices& of_all_towers,
                                                const at::Tensor& value) const {
  if (value_) return core.extended().broadcast_to(value, *value_);
  if (devices_.empty()) {
    const std::vector<int> one_each(static_cast<std::size_t>(core.num_local_replicas()));
    return core.extended().broadcast_to(value, PerReplica<int>(one_each));
  }
  const std::string& here = core.devices()[0];
  return Mirrored<at::Tensor>::generate(devices_.size(), [&](std::size_t k) {
    const DeviceName wanted = canonicalize(devices_[k], here);
    const auto is_there = [&](const std::string& tower) {
      const DeviceName name = parse_device(tower);
      return name.job == wanted.job && name.task == wanted.task;
    };
    if (std::none_of(of_all_towers.begin(), of_all_towers.end(), is_there)) {
      throw InvalidArgument(errors::kDevice, {.what = str("no worker of this strategy has the device ", devices_[k]),
                                              .help = "name a device like those of worker_devices()"});
    }
    return core.extended().broadcast_to(value, is_there(here) ? devices_[k] : here)[0];
  });
}

namespace detail {

Devices own_devices(const Strategy& core, const Devices& of_all_towers, const Devices& devices) {
  const Devices& here = core.devices();
  Devices own;
  for (const std::string& device : devices) {
    const std::string name = to_string(canonicalize(device, here[0]));
    const bool is_here = std::find(here.begin(), here.end(), name) != here.end();
    const bool is_known = std::find(of_all_towers.begin(), of_all_towers.end(), name) != of_all_towers.end();
    if (is_here || !is_known) own.push_back(device);  // the core refuses what is unknown
  }
  return own;
}

std::vector<at::Tensor> all_towers(const Strategy& core, const std::vector<at::Tensor>& mine) {
  WorkerGroup* workers = lockstep::detail::StrategyAccess::workers(core);
  if (workers == nullptr) return mine;
  return workers::all_gather(*workers, mine, "values of towers", deadline_of(core.communication()));
}

std::vector<std::string> all_towers(const Strategy& core, const std::vector<std::string>& mine) {
  WorkerGroup* workers = lockstep::detail::StrategyAccess::workers(core);
  if (workers == nullptr) return mine;
  std::vector<std::string> all;
  for (const auto& texts :
       workers::all_gather_texts(*workers, mine, "texts of towers", deadline_of(core.communication())))
    all.insert(all.end(), texts.begin(), texts.end());
  return all;
}

void append_tensors(const std::vector<ReducibleLeaf>& leaves, std::vector<at::Tensor>& tensors) {
  for (const ReducibleLeaf& leaf : leaves) {
    if (const auto* tensor = std::get_if<at::Tensor>(&leaf)) {
      tensors.push_back(*tensor);
    } else {
      tensors.push_back(std::get<IndexedSlices>(leaf).values);
      tensors.push_back(std::get<IndexedSlices>(leaf).indices);
    }
  }
}

std::vector<ReducibleLeaf> take_leaves(const std::vector<ReducibleLeaf>& like, const std::vector<at::Tensor>& tensors,
                                       std::size_t& next) {
  std::vector<ReducibleLeaf> leaves;
  for (const ReducibleLeaf& leaf : like) {
    if (std::holds_alternative<at::Tensor>(leaf)) {
      leaves.emplace_back(tensors.at(next++));
    } else {
      const at::Tensor& values = tensors.at(next++);
      leaves.emplace_back(IndexedSlices{values, tensors.at(next++), std::get<IndexedSlices>(leaf).dense_shape});
    }
  }
  return leaves;
}

at::Tensor aggregate(Strategy& core, VariableAggregation aggregation, const TowerValue& value, const char* operation) {
  if (aggregation == Aggregation::None) {
    throw InvalidArgument(errors::kNotReducible, {.what = "aggregation must be SUM, MEAN or ONLY_FIRST_TOWER, got NONE",
                                                  .where = operation,
                                                  .help = "pass VariableAggregation::SUM, MEAN or ONLY_FIRST_TOWER"});
  }
  const bool is_sum = aggregation == Aggregation::Sum;
  switch (value.kind()) {
    case TowerValue::Kind::Mirrored:
      throw InvalidArgument(errors::kNotReducible,
                            {.what = "a Mirrored value cannot be reduced: it is one value, not one per tower",
                             .where = operation,
                             .help = "use the value as it is, or reduce what call_for_each_tower returned"});
    case TowerValue::Kind::Plain: {
      const at::Tensor& plain = value.values().at(0);
      // Nothing, once per tower, is nothing.
      const bool is_zero = plain.defined() && plain.dim() == 0 && plain.item().toDouble() == 0;
      if (is_sum && core.num_replicas_in_sync() > 1 && !is_zero) {
        throw InvalidArgument(
            errors::kNotReducible,
            {.what = str("a value that is not distributed cannot be reduced with SUM over ",
                         core.num_replicas_in_sync(), " towers"),
             .where = operation,
             .help = "reduce what call_for_each_tower returned, or use MEAN for a value that all towers share"});
      }
      return plain.clone();
    }
    case TowerValue::Kind::PerDevice: break;
  }
  if (aggregation == Aggregation::OnlyFirstReplica) return core.broadcast(value.values().at(0));
  return core.reduce(is_sum ? ReduceOp::Sum : ReduceOp::Mean, PerReplica<at::Tensor>(value.values()));
}

}  // namespace detail
}  // namespace lockstep::contrib
