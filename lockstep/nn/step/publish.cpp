#include "lockstep/nn/step/publish.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/collect.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/step/recording.h"
#include "lockstep/nn/step/sent_digests.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/values/const_data.h"

namespace lockstep::detail {
namespace {

void warn_of_unreached(const OptimizerCore& core, ReplicaPart& mine) {
  if (mine.index != 0 || !core.said.is_first(Warning::UnreachedParameters)) return;
  const auto first = static_cast<std::size_t>(
      std::find_if(core.group_of.begin(), core.group_of.end(), [](int group) { return group >= 0; }) -
      core.group_of.begin());
  say_warning(str("the loss reaches none of the optimizer's parameters ('", core.module->parameters()[first].name,
                  "' is the first): step ", mine.steps,
                  " has updated nothing. Compute the loss with the model that the optimizer was made for, and freeze "
                  "only what is not to be trained"));
}

/// Every replica compares the same and comes to the same answer.
void compare_digests(const OptimizerCore& core, ReplicaPart& mine) {
  const std::vector<TensorDigest> digests =
      digests_of_replica(core, static_cast<std::size_t>(mine.index), core.settings.digest.buffers);
  meet(
      "digest", {&core, "step", 0, &digests},
      [&] {
        std::vector<const std::vector<TensorDigest>*> all;
        for_each_payload(digests, [&](const std::vector<TensorDigest>& theirs) { all.push_back(&theirs); });
        require_no_difference(all, mine.steps);
      },
      WaitFor::Ever);
}

/// Replicas of one worker share their weights; those of another worker have them to themselves.
void compare_with_workers(const OptimizerCore& core, const ReplicaPart& mine, WorkerGroup& workers) {
  const auto compare = [&] {
    // Replicas of this worker have just been found to be equal, so that its first one's buffers stand for all.
    const std::vector<TensorDigest> here = digests_while_replicas_wait(core, core.settings.digest.buffers);
    std::vector<std::int64_t> numbers;
    for (const TensorDigest& each : here) numbers.push_back(static_cast<std::int64_t>(each.value));
    const Deadline deadline = deadline_of(core.module->strategy().communication());
    const auto gathered = workers::all_gather(workers, {at::tensor(numbers)}, "digests of the training", deadline);
    std::vector<std::vector<TensorDigest>> all(gathered.size(), here);
    std::vector<const std::vector<TensorDigest>*> pointers;
    for (std::size_t w = 0; w < all.size(); ++w) {
      for (std::size_t i = 0; i < here.size(); ++i)
        all[w][i].value = static_cast<std::uint64_t>(const_data<std::int64_t>(gathered[w])[i]);
      pointers.push_back(&all[w]);
    }
    const auto difference = find_difference(pointers);
    if (!difference) return;
    throw DataLoss(errors::kDrift,
                   {.what = str(difference->name, " of worker ", difference->replica, " differs from worker ",
                                difference->agreed_with, "'s"),
                    .where = str("after step ", mine.steps),
                    .seen = "their digests differ",
                    .help = "restore a checkpoint; look for code that changes weights in another way on "
                            "one worker, for different machines, or for bad memory"});
  };
  get_replica_context().seat()->lead("digests of workers", nullptr, compare);
}

}  // namespace

void publish_step(OptimizerCore& core, ReplicaPart& mine) {
  count_step(core, mine);
  drop_gradients(core, mine);
  const bool is_reached =
      std::any_of(mine.kinds.begin(), mine.kinds.end(), [](GradientKind kind) { return kind != GradientKind::None; });
  if (!is_reached) warn_of_unreached(core, mine);
  if (is_recording(core)) return;
  send_check(core, mine);
  WorkerGroup* const workers = StrategyAccess::workers(core.module->strategy());
  if (core.on_device && workers == nullptr) return send_due_digests(core, mine);
  const std::int64_t every = core.settings.digest.every;
  if (every == 0) return;
  settle_checks(core, mine);
  if (mine.steps % every != 0) return;
  compare_digests(core, mine);
  if (workers) compare_with_workers(core, mine, *workers);
}

}  // namespace lockstep::detail
