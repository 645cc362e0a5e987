#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <mutex>
#include <set>

#include "lockstep/base/logging.h"
#include "lockstep/data/distribute/ceil_split.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/data/distribute/distributed_input.h"
#include "lockstep/data/errors.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::data {
namespace {

ClusterShape cluster_of(Strategy& strategy) {
  const int local = strategy.num_local_replicas();
  const int all = strategy.num_replicas_in_sync();
  if (all % local != 0) {
    throw InvalidArgument(errors::kSharding, {.what = "every worker must have the same number of replicas",
                                              .where = "distribute",
                                              .seen = str(all, " replicas in all, ", local, " of them here"),
                                              .help = "give every worker as many devices as the others"});
  }
  return {all / local, local, strategy.replica_context(0).replica_id_in_sync_group() / local};
}

/// Sums over the workers while their programs continue. A dataset may outlive the strategy.
Agreement agreement_of_workers(Strategy& strategy) {
  using lockstep::detail::StrategyAccess;
  return [alive = StrategyAccess::alive(strategy)](const StepTotals& mine) -> std::function<StepTotals()> {
    using Numbers = std::array<std::int64_t, sizeof(StepTotals) / sizeof(std::int64_t)>;
    const auto numbers = std::bit_cast<Numbers>(mine);
    const Strategy& used = StrategyAccess::require_alive(alive, "a distributed dataset");
    return [sums_of_all = workers::begin_sums(
                *StrategyAccess::workers(used), std::vector(numbers.begin(), numbers.end()),
                "what workers have for a step of a distributed dataset", deadline_of(used.communication()))] {
      Numbers sums;
      std::ranges::copy(sums_of_all(), sums.begin());
      return std::bit_cast<StepTotals>(sums);
    };
  };
}

DistributedInputPtr finish(Strategy& strategy, DistributedInput input, const InputOptions& options) {
  input.job_seed = strategy.seed();
  input.buffer_size = options.per_replica_buffer_size;
  if (options.fetch_to_device) {
    for (int k = 0; k < strategy.num_local_replicas(); ++k)
      input.devices.push_back(strategy.replica_context(k).device());
  }
  if (input.agreement && input.cluster.workers > 1) input.agreement = agreement_of_workers(strategy);
  return std::make_shared<const DistributedInput>(std::move(input));
}

/// Each worker reads its part, so all must have built the same dataset. Files may be in different folders on different
/// machines, and with AutoShardPolicy::Off each worker may have its own rows.
void require_same_dataset(Strategy& strategy, const InputPlan& plan, const Stage& dataset) {
  WorkerGroup* const group = lockstep::detail::StrategyAccess::workers(strategy);
  if (group == nullptr) return;
  workers::Texts lines{str("batch size: ", plan.global_batch_size), str("sharding: ", to_string(plan.policy)),
                       str("assignment: ", to_string(plan.assignment)),
                       str("element: ", to_string(dataset.element_spec()))};
  if (plan.policy != AutoShardPolicy::Off) lines.push_back(str("elements: ", to_string(plan.cardinality)));
  workers::require_same(*group,
                        {.what = "dataset",
                         .lines = std::move(lines),
                         .help = "make the same dataset on every worker; to give each its own, use "
                                 "strategy.distribute_from_function"},
                        "distribute: dataset", deadline_of(strategy.communication()));
}

/// Whether a dataset is distributed for the first time: loops over epochs distribute it repeatedly.
bool is_first_time(const StagePtr& dataset) {
  static std::mutex mutex;
  static auto& seen = *new std::set<std::weak_ptr<const Stage>, std::owner_less<>>;
  const std::lock_guard lock(mutex);
  std::erase_if(seen, [](const auto& each) { return each.expired(); });
  return seen.insert(dataset).second;
}

/// Warns now, or once the first element shows what is cut.
void warn_of_single_rows(const InputPlan& plan, const ElementSpec& spec) {
  if (plan.split.rule != SplitRule::BalancedStream && !tells_all(spec))
    plan.split.warnings->of_single_rows = true;
  else
    say_warning(single_rows_warning(to_string(spec)));
}

}  // namespace

DistributedInputPtr distribute_stage(Strategy& strategy, const StagePtr& dataset, const InputOptions& options) {
  lockstep::detail::require_cross_replica(strategy, "distribute");
  check_for_dataset(options);
  const InputPlan plan = plan_input(dataset, policy_of(*dataset), options.assignment, cluster_of(strategy));
  const auto warning = fallback_warning(plan);
  if ((warning || plan.has_single_rows) && is_first_time(dataset)) {
    if (warning) say_warning(*warning);
    if (plan.has_single_rows) warn_of_single_rows(plan, dataset->element_spec());
  }
  for (const std::string& removed : plan.shards.removed) {
    say_warning(str("distribute: ", removed, " is left out, because the workers share the elements it counts"));
  }
  require_same_dataset(strategy, plan, *dataset);
  return finish(strategy, distributed_by_plan(plan), options);
}

std::vector<InputContext> contexts_for_function(Strategy& strategy, const InputOptions& options) {
  lockstep::detail::require_cross_replica(strategy, "distribute_from_function");
  const ClusterShape cluster = cluster_of(strategy);
  check_for_function(options, cluster.workers);
  if (options.replication_mode == ReplicationMode::PerWorker)
    return {{cluster.workers, cluster.worker, cluster.replicas()}};
  std::vector<InputContext> contexts;
  for (int k = 0; k < cluster.replicas(); ++k) contexts.push_back({cluster.replicas(), k, cluster.replicas()});
  return contexts;
}

DistributedInputPtr distribute_made(Strategy& strategy, const std::vector<StagePtr>& pipelines,
                                    const InputOptions& options) {
  const bool one_for_each = options.replication_mode == ReplicationMode::PerReplica;
  return finish(strategy, distributed_pipelines(pipelines, cluster_of(strategy), one_for_each, options.assignment),
                options);
}

void require_all_rows_here() {
  if (!workers::are_several()) return;
  throw FailedPrecondition(errors::kWrongContext,
                           {.what = "global_rows of a PerReplica sees only this worker's rows",
                            .where = "global_rows",
                            .help = "count inside run, which all workers call: ls::global_rows(tensor)"});
}

std::vector<Element> split_batch(Strategy& strategy, const Element& batch) {
  lockstep::detail::require_cross_replica(strategy, "split");
  // Throws if the number of rows is ambiguous or differs between components.
  row_count(batch, "split", kHelpForBatches);
  std::vector<Element> parts;
  for (int k = 0; k < strategy.num_local_replicas(); ++k)
    parts.push_back(moved_to(piece_of(SplitRule::Even, batch, strategy.num_local_replicas(), k),
                             strategy.replica_context(k).device()));
  return parts;
}

}  // namespace lockstep::data
