#include "lockstep/nn/step/check_and_clip.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/block_norm.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/collect.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/step/misuse.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::detail {
namespace {

/// Every replica checks all parameters, so all decide alike.
void require_real_gradients(const OptimizerCore& core, const ReplicaPart& mine, const char* operation) {
  for (std::size_t p = 0; p < mine.kinds.size(); ++p) {
    const auto& parameter = core.module->parameters()[p];
    if (mine.kinds[p] == GradientKind::None || !parameter.leaves[0].is_complex()) continue;
    throw InvalidArgument(
        errors::kDtype, {.what = str(operation, " is for real gradients; the one of '", parameter.name, "' is complex"),
                         .help = "train the real and the imaginary part as separate parameters"});
  }
}

void taken(const OptimizerCore& core, const ReplicaPart& mine, const char* operation) {
  for (const auto& observer : core.observers) observer->gradients_taken({core, mine, operation});
}

/// Called after Lockstep itself changed them.
void wait_again(const OptimizerCore& core, const ReplicaPart& mine, const char* operation) {
  for (const auto& observer : core.observers) observer->gradients_wait({core, mine, operation});
}

void require_clippable(const OptimizerCore& core, const ReplicaPart& mine, const char* operation) {
  if (!mine.progress.is_reduced())
    throw_misuse("clipping comes after the reduction over replicas", "call reduce_gradients() first", operation);
  require_unscaled(mine, operation);
  require_real_gradients(core, mine, operation);
  if (mine.plan.in_parts) taken(core, mine, operation);
}

void scale_gradients(ReplicaPart& mine, double factor) {
  const at::NoGradGuard no_grad;
  for (OwnedSegment& segment : mine.owned) {
    if (segment.sum.defined()) segment.gradient().mul_(factor);
  }
}

void skip_step(const OptimizerCore& core, ReplicaPart& mine) {
  ++mine.skipped;
  drop_gradients(core, mine);
}

/// Sums squares block by block; blocks do not depend on ownership, so neither does the norm.
double global_norm(OptimizerCore& core, ReplicaPart& mine, double max_norm) {
  const at::NoGradGuard no_grad;
  for (OwnedSegment& segment : mine.owned) {
    const Segment& where = segment.where;
    double* sums = core.blocks.sums.data() + core.blocks.first[static_cast<std::size_t>(where.parameter)] +
                   static_cast<std::size_t>(where.begin / kShardBlock);
    const auto blocks = static_cast<std::size_t>((where.end - where.begin + kShardBlock - 1) / kShardBlock);
    std::fill_n(sums, std::max<std::size_t>(blocks, 1), 0.0);
    if (!segment.sum.defined()) continue;
    const bool is_sparse = segment.sum.is_sparse();
    if (is_sparse) segment.sum = segment.sum.coalesce();  // rows that occur twice count by their sum
    sum_squares_in_blocks(is_sparse ? segment.values().reshape({-1}) : segment.values(), sums, is_sparse ? 1 : blocks);
  }
  double norm = 0;
  meet("clip_global_norm", {&core, "clip_global_norm", max_norm},
       [&] { norm = std::sqrt(tree_sum(core.blocks.sums)); });
  return norm;
}

}  // namespace

void require_positive(double value, const char* name) {
  if (value > 0) return;
  throw InvalidArgument(errors::kBadOption, {.what = str(name, " must be > 0, got ", value),
                                             .help = "give a positive number; std::nullopt in set_* switches it off"});
}

void require_reduced(const ReplicaPart& mine, const char* operation) {
  if (!mine.progress.is_reduced())
    throw_misuse("there are no reduced gradients", "call reduce_gradients() first", operation);
}

void require_unscaled(const ReplicaPart& mine, const char* operation) {
  if (mine.progress.is_scaled())
    throw_misuse("the gradients still belong to the scaled loss",
                 str("call unscale(scaler) before ", operation,
                     "; if they belong to another loss, call optimizer.backward(loss) for it"),
                 operation);
}

bool are_finite(const std::vector<OwnedSegment>& segments) {
  at::Tensor all;  // on the GPU
  for (const OwnedSegment& segment : segments) {
    if (!segment.sum.defined()) continue;
    const at::Tensor here = segment.values().isfinite().all();
    if (!here.is_cpu()) {
      all = all.defined() ? all.logical_and(here) : here;
    } else if (!here.item<bool>()) {
      return false;
    }
  }
  return !all.defined() || all.item<bool>();
}

bool are_all_finite(const OptimizerCore& core, ReplicaPart& mine) {
  const bool is_finite = are_finite(mine.owned);
  bool all = true;
  meet("gradients_are_finite", {&core, "gradients_are_finite", 0, &is_finite},
       [&] { for_each_payload(is_finite, [&](bool theirs) { all = all && theirs; }); });
  return all;
}

bool passes_finite_check(const OptimizerCore& core, ReplicaPart& mine) {
  NonFiniteSum first;
  meet("finite check", {&core, "step", 0, &mine.reduced.not_finite}, [&] {
    for_each_payload(mine.reduced.not_finite, [&](const NonFiniteSum& theirs) {
      if (theirs.parameter >= 0 && (first.parameter < 0 || theirs.parameter < first.parameter)) first = theirs;
    });
  });
  if (first.parameter < 0) return true;
  if (core.settings.not_finite == NonFinitePolicy::SkipStep) {
    skip_step(core, mine);
    return false;
  }
  drop_gradients(core, mine);
  const std::string& name = core.module->parameters()[static_cast<std::size_t>(first.parameter)].name;
  throw FailedPrecondition(
      errors::kNotFinite,
      {.what = str("the gradient of '", name, "' holds NaN or infinity"),
       .where = str("step ", mine.steps, ", from ",
                    first.replica < 0 ? "a replica of another worker" : str("replica ", first.replica),
                    first.by_exclusion ? ", or from adding up finite ones" : ""),
       .seen = "the weights have not been changed",
       .help = "lower the learning rate or clip; set_non_finite_policy(NonFinitePolicy::SkipStep) skips such "
               "steps"});
}

bool unscale(const OptimizerCore& core, ReplicaPart& mine, GradScaler& scaler) {
  GradientProgress& progress = mine.progress;
  if (!progress.is_reduced())
    throw_misuse("unscaling comes after the reduction over replicas", "call reduce_gradients() first", "unscale");
  if (progress.stage == GradientStage::Unscaled)
    throw_misuse("the gradients are already unscaled", "call unscale() once per step", "unscale");
  if (!progress.loss_scale)
    throw_misuse("the gradients are not of a scaled loss", "call backward(loss, scaler) instead of backward(loss)",
                 "unscale");
  const bool is_finite = are_all_finite(core, mine);
  scaler.update(is_finite);
  if (!is_finite) {
    skip_step(core, mine);
    return false;
  }
  if (mine.plan.in_parts) taken(core, mine, "unscale");
  scale_gradients(mine, 1.0 / *progress.loss_scale);
  if (mine.plan.in_parts) wait_again(core, mine, "unscale");
  progress.stage = GradientStage::Unscaled;
  return true;
}

void require_same_clip(const OptimizerCore& core, const char* call, double limit) {
  const Strategy& strategy = core.module->strategy();
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return;
  const Deadline deadline = deadline_of(strategy.communication());
  const StepCall brought{&core, call, limit};
  local::Seat& seat = *get_replica_context().seat();
  seat.lead(
      call, &brought,
      [&] {
        require_same_call(seat);
        workers::require_same(*workers,
                              {.what = call,
                               .lines = {str("limit: ", limit)},
                               .number = errors::kCollectiveMismatch,
                               .help = "clip on every worker, to the same limit"},
                              call, deadline);
      },
      deadline);
}

double clip_global_norm(OptimizerCore& core, ReplicaPart& mine, double max_norm) {
  require_positive(max_norm, "max_norm");
  require_clippable(core, mine, "clip_global_norm");
  const double norm = global_norm(core, mine, max_norm);
  mine.progress.clip_mark = 5 * mine.progress.clip_mark + max_norm;
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1.0) scale_gradients(mine, factor);
  if (mine.plan.in_parts) wait_again(core, mine, "clip_global_norm");
  return norm;
}

void clip_value(const OptimizerCore& core, ReplicaPart& mine, double limit) {
  require_positive(limit, "limit");
  require_clippable(core, mine, "clip_value");
  const at::NoGradGuard no_grad;
  for (OwnedSegment& segment : mine.owned) {
    if (!segment.sum.defined()) continue;
    if (segment.sum.is_sparse()) segment.sum = segment.sum.coalesce();
    segment.values().clamp_(-limit, limit);
  }
  mine.progress.clip_mark = 3 * mine.progress.clip_mark + limit;
  if (mine.plan.in_parts) wait_again(core, mine, "clip_value");
}

namespace {

/// Does not return the norm, so that nothing has to wait for a GPU.
void clip_on_device(OptimizerCore& core, ReplicaPart& mine, double max_norm) {
  require_clippable(core, mine, "clip_global_norm");
  core.updater->write_squares(mine);
  meet("clip_global_norm", {&core, "clip_global_norm", max_norm}, [&] { core.updater->clip(mine, max_norm); });
  mine.progress.clip_mark = 5 * mine.progress.clip_mark + max_norm;
}

}  // namespace

bool check_and_clip(OptimizerCore& core, ReplicaPart& mine, GradScaler* scaler) {
  const StepPlan& plan = mine.plan;
  if (plan.unscale == ScaleBy::Device) {
    core.updater->unscale(mine);
    mine.progress.stage = GradientStage::Unscaled;
  }
  if (plan.unscale == ScaleBy::Host && !unscale(core, mine, *scaler)) return false;
  if (plan.finite == StepPlan::Finite::Host && !passes_finite_check(core, mine)) return false;
  if (plan.clip_norm && plan.clips_on_device) clip_on_device(core, mine, *plan.clip_norm);
  if (plan.clip_norm && !plan.clips_on_device) clip_global_norm(core, mine, *plan.clip_norm);
  if (plan.clip_value) clip_value(core, mine, *plan.clip_value);
  return true;
}

}  // namespace lockstep::detail
