#include "lockstep/nn/step/take_step.h"

#include "lockstep/nn/autocast.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/check_and_clip.h"
#include "lockstep/nn/step/collect.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/loss_scale.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/step/misuse.h"
#include "lockstep/nn/step/recording.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

/// In the meeting, when the kinds of all gradients are known: every replica makes the same plan, and executes its part
/// in this meeting.
void plan_and_reduce(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, bool in_parts) {
  StepRequest request{.has_workers = core.reducer->has_workers(), .in_parts = in_parts};
  if (mine.scale)
    request.scale = ScaleBy::Device;
  else if (mine.progress.loss_scale)
    request.scale = ScaleBy::Host;
  mine.plan = plan_step(core.settings, request, core.updater->traits(mine.kinds));
  if (mine.scale && mine.plan.unscale != ScaleBy::Device) {
    mine.progress.loss_scale = mine.scale->read().scale;
    mine.scale.reset();
  }
  const auto reduce = [&] {
    core.reducer->reduce(mine, op);
    if (mine.plan.finite == StepPlan::Finite::Device) core.updater->check(mine);
  };
  if (!mine.plan.is_one_pass) return reduce();
  core.poison.update_or_poison(mine.steps, [&] {
    reduce();
    core.updater->update(mine);
  });
}

/// Handles gradients that no backward of this optimizer computed: another optimizer's did, or the backward of a loss
/// that the program scaled.
void find_scale(ReplicaPart& mine) {
  const ScalesOfRun* const used = run_local<ScalesOfRun>();
  if (mine.progress.stage != GradientStage::None || used == nullptr || used->scale == 0) return;
  if (used->has_several)
    throw_misuse(
        "this run had backward calls of losses with different scales, and these gradients may belong to any of them",
        "call backward(loss, scaler) of this optimizer instead of scaled(loss).backward()", "reduce_gradients");
  if (used->scale == kScaleOnDevice)
    throw_misuse(
        "the gradients are of a loss that another optimizer's minimize has scaled on the GPU",
        "call backward(loss, scaler) of one optimizer, then reduce_gradients(), unscale(scaler) and step() of each",
        "reduce_gradients");
  mine.progress.loss_scale = used->scale;
}

/// Phase 5: every replica adopts the new weights, and drops its gradients.
void publish(OptimizerCore& core, ReplicaPart& mine) {
  if (core.recorder() != nullptr) leave_to_recorder(core, mine);
  if (!core.is_recording()) count_step(core, mine, mine.kinds);
  drop_gradients(core, mine);
  if (core.is_recording()) return;
  send_check(core, mine);
  for (const auto& observer : core.observers) observer->updated({core, mine});
}

}  // namespace

bool take_step(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, GradScaler* scaler, const char* call) {
  meet_with_gradients(core, mine, op, call, [&] { plan_and_reduce(core, mine, op, /*in_parts=*/false); });
  if (mine.plan.is_one_pass) {
    publish(core, mine);
    return true;
  }
  mine.progress.stage = GradientStage::Reduced;
  if (!check_and_clip(core, mine, scaler)) return false;
  update_and_publish(core, mine);
  return true;
}

void reduce_in_parts(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, const char* call) {
  require_no_failed_run(core, mine, "reduce_gradients");
  if (mine.progress.is_reduced())
    throw_misuse("the gradients are already reduced", "call step() or zero_grad() before the next reduction",
                 "reduce_gradients");
  meet_with_gradients(core, mine, op, call, [&] { plan_and_reduce(core, mine, op, /*in_parts=*/true); });
  find_scale(mine);
  mine.progress.stage = GradientStage::Reduced;
}

void update_and_publish(OptimizerCore& core, ReplicaPart& mine) {
  for (const auto& watcher : watchers_here()) watcher->require_untouched(static_cast<std::size_t>(mine.index));
  meet("step", {&core, "step", mine.progress.clip_mark},
       [&] { core.poison.update_or_poison(mine.steps, [&] { core.updater->update(mine); }); });
  publish(core, mine);
}

void count_step(OptimizerCore& core, ReplicaPart& mine, const std::vector<GradientKind>& kinds) {
  const auto& parameters = core.module->parameters();
  const auto k = static_cast<std::size_t>(mine.index);
  // Leaves share memory but not version counters. Without this a backward through values from before the update would
  // give wrong gradients instead of LibTorch's error.
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (kinds[p] != GradientKind::None) parameters[p].leaves[k].unsafeGetTensorImpl()->bump_version();
  }
  if (k == 0) core.reducer->end_step();
  for (const auto& watcher : watchers_here()) watcher->remember(k);
  // Weights that autocast cast before the update are stale.
  forget_cast_weights();
  ++mine.steps;
}

}  // namespace lockstep::detail
