#include "lockstep/contrib/distribution_strategy.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/fnv.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/cluster_resolver.h"
#include "lockstep/comm/cluster/cluster_spec.h"
#include "lockstep/contrib/loss_reduction.h"
#include "lockstep/contrib/tower_rules.h"
#include "lockstep/nn/models_made.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy_words.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/values/type_name.h"

namespace lockstep::contrib {
namespace {

/// Contexts refer only to the core.
DistributionStrategy& owner_of(const Strategy& core) {
  if (DistributionStrategy* const owner = detail::client_of(core)) return *owner;
  throw FailedPrecondition(errors::kWrongContext,
                           {.what = "no strategy of lockstep::contrib is current here",
                            .help = "call this inside call_for_each_tower, or open a scope: auto scope = "
                                    "strategy.scope();"});
}

}  // namespace

DistributionStrategy::~DistributionStrategy() = default;

void DistributionStrategy::set_core(std::unique_ptr<Strategy> core, Devices devices) {
  detail::set_client(*core, *this);
  lockstep::detail::set_words(*core, detail::tower_words());
  is_configured_ = core_ != nullptr;
  core_ = std::move(core);
  devices_ = std::move(devices);
}

bool DistributionStrategy::is_used() const {
  return is_used_ || lockstep::detail::has_made_models(*core_) ||
         lockstep::detail::StrategyAccess::has_made_variables(*core_);
}

void DistributionStrategy::note_use() {
  if (std::exchange(is_used_, true) || is_configured_) return;
  int workers = 0;
  try {
    const ClusterSpec cluster = TFConfigClusterResolver().cluster_spec();
    for (const char* job : {"chief", "worker"}) workers += cluster.has_job(job) ? cluster.num_tasks(job) : 0;
  } catch (const Error&) {  // a cluster that this program does not use may have any description
  }
  if (workers < 2) return;
  say_warning(
      str("TF_CONFIG names ", workers,
          " workers, but this one trains alone: no cluster was given to configure. Call "
          "strategy.configure({.cluster_spec = lockstep::TFConfigClusterResolver().cluster_spec()}) right after "
          "making the strategy"));
}

PerDevice<int> DistributionStrategy::worker_device_index() const {
  return core_->values_from_function([](const ValueContext& tower) { return tower.replica_id_in_sync_group; });
}

Mirrored<at::Tensor> DistributionStrategy::reduce(VariableAggregation aggregation, const TowerValue& value,
                                                  const TowerDestinations& destinations,
                                                  const std::source_location& where) {
  const detail::CrossTowerCall client(*core_, "reduce");
  const lockstep::detail::CallPlace place(where);
  return destinations.deliver(*core_, devices_, detail::aggregate(*core_, aggregation, value, "reduce"));
}

Mirrored<IndexedSlices> DistributionStrategy::reduce(VariableAggregation aggregation,
                                                     const PerDevice<IndexedSlices>& value,
                                                     const TowerDestinations& destinations,
                                                     const std::source_location& where) {
  return batch_reduce(aggregation, std::vector{SparseReducePair{value, destinations}}, where)[0];
}

std::vector<Mirrored<at::Tensor>> DistributionStrategy::batch_reduce(VariableAggregation aggregation,
                                                                     const std::vector<ReducePair>& pairs,
                                                                     const std::source_location& where) {
  const detail::CrossTowerCall client(*core_, "batch_reduce");
  const lockstep::detail::CallPlace place(where);
  const bool is_sum = aggregation == Aggregation::Sum;
  const auto is_batched = [&](const TowerValue& value) {
    return (is_sum || aggregation == Aggregation::Mean) && value.kind() == TowerValue::Kind::PerDevice;
  };
  std::vector<StrategyExtended::ReducePair> batch;
  for (const auto& [value, destinations] : pairs)
    if (is_batched(value)) {
      detail::require_of_all_towers(*core_, "batch_reduce", value.local_values().size());
      batch.emplace_back(PerReplica<at::Tensor>(value.local_values()), core_->devices()[0]);
    }
  const auto reduced = core_->extended().batch_reduce_to(is_sum ? ReduceOp::Sum : ReduceOp::Mean, batch);
  std::vector<Mirrored<at::Tensor>> results;
  results.reserve(pairs.size());
  auto next = reduced.begin();
  for (const auto& [value, destinations] : pairs) {
    const at::Tensor one =
        is_batched(value) ? (*next++)[0] : detail::aggregate(*core_, aggregation, value, "batch_reduce");
    results.push_back(destinations.deliver(*core_, devices_, one));
  }
  return results;
}

std::vector<Mirrored<IndexedSlices>> DistributionStrategy::batch_reduce(VariableAggregation aggregation,
                                                                        const std::vector<SparseReducePair>& pairs,
                                                                        const std::source_location& where) {
  const detail::CrossTowerCall client(*core_, "batch_reduce");
  const lockstep::detail::CallPlace place(where);
  std::vector<Mirrored<IndexedSlices>> results;
  for (const auto& [value, destinations] : pairs)
    results.push_back(destinations.deliver(*core_, devices_, detail::aggregate(*core_, aggregation, value, "reduce")));
  return results;
}

Mirrored<at::Tensor> DistributionStrategy::broadcast(const TowerValue& value, const TowerDestinations& destinations) {
  const detail::CrossTowerCall client(*core_, "broadcast");
  return destinations.deliver(*core_, devices_, value.tensor());
}

TowerLocalVariable DistributionStrategy::tower_local_variable(const at::Tensor& initial_value,
                                                              VariableAggregation aggregation,
                                                              const std::string& name) {
  const VariableOptions options{
      .name = name, .synchronization = Synchronization::OnRead, .aggregation = aggregation, .trainable = false};
  const detail::TowerWords words;
  return TowerLocalVariable(detail::is_in_tower(*core_) ? Variable(initial_value, options)
                                                        : core_->make_variable(initial_value, options));
}

std::size_t DistributionStrategy::index_of(const std::string& device, const Devices& among, const char* operation) {
  const auto found = std::find(among.begin(), among.end(), to_string(canonicalize(device, among[0])));
  if (found == among.end()) {
    throw InvalidArgument(errors::kDevice, {.what = str("device ", device, " not found in the devices of the towers"),
                                            .where = operation,
                                            .help = "name some of worker_devices(), for get this worker's"});
  }
  return static_cast<std::size_t>(found - among.begin());
}

std::vector<std::size_t> DistributionStrategy::towers_of(const Devices& devices, const char* operation) const {
  std::vector<std::size_t> towers;
  for (const std::string& device : devices) {
    const std::size_t tower = index_of(device, devices_, operation);
    if (std::find(towers.begin(), towers.end(), tower) != towers.end())
      throw InvalidArgument(errors::kDevice, {.what = str("device ", device, " is named twice"),
                                              .where = operation,
                                              .help = "name each device once, as worker_devices() does"});
    towers.push_back(tower);
  }
  if (!towers.empty()) return towers;
  throw InvalidArgument(errors::kDestination, {.what = str(operation, " needs at least one device, got none"),
                                               .help = "pass what non_slot_devices() returns"});
}

std::size_t DistributionStrategy::this_tower() const {
  return static_cast<std::size_t>(core_->worker_id() * core_->num_local_replicas() + std::max(0, current_component()));
}

void DistributionStrategy::require_equal_calls(const std::type_info& function) const {
  WorkerGroup* const workers = lockstep::detail::StrategyAccess::workers(*core_);
  if (workers == nullptr) return;
  workers::require_same(
      *workers,
      {.what = "what the towers call",
       .lines = {str("function of the towers: ", type_name(function)), str("merge_call calls: ", merges_),
                 str("digest of the functions of merge_call: ", merged_functions_)},
       .number = errors::kUnequalMeetings,
       .help = "Some towers made a different number of merge_call calls, or calls of other functions: "
               "make the same ones on every tower of every worker"},
      "end of call_for_each_tower", deadline_of(core_->communication()));
}

DistributionStrategy& TowerContext::distribution_strategy() const { return owner_of(replica_->strategy()); }

int detail::count_merge(const Strategy& core, const std::type_info& function) {
  DistributionStrategy* const owner = client_of(core);
  if (owner == nullptr) return 0;
  owner->merged_functions_ = fnv1a(std::span<const char>(std::string_view(function.name())), owner->merged_functions_);
  return ++owner->merges_;
}

TowerContext get_tower_context() {
  const detail::TowerWords words;
  return TowerContext(get_replica_context());
}

bool in_cross_tower_context() { return in_cross_replica_context(); }

DistributionStrategy& get_distribution_strategy() { return owner_of(get_strategy()); }

at::Tensor scale_loss(const at::Tensor& loss, LossReduction reduction) {
  if (!loss.defined())
    throw InvalidArgument(errors::kShape,
                          {.what = "the loss is an undefined tensor", .help = "pass a loss with a value"});
  const int towers = get_tower_context().num_towers();
  return reduction == LossReduction::MEAN && towers > 1 ? loss.mul(1.0 / towers) : loss;
}

void detail::throw_not_initialized() {
  throw FailedPrecondition(errors::kNoMoreData,
                           {.what = "the iterator has not been initialized",
                            .where = "get_next",
                            .help = "call iterator.initialize() first, or make_one_shot_iterator"});
}

}  // namespace lockstep::contrib
