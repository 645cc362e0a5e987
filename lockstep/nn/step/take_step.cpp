#include "lockstep/nn/step/take_step.h"

#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/check_and_clip.h"
#include "lockstep/nn/step/collect.h"
#include "lockstep/nn/step/loss_scale.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/step/misuse.h"
#include "lockstep/nn/step/publish.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

/// In the meeting, where the kinds of all gradients are known: every replica comes to the same plan.
void plan(const OptimizerCore& core, ReplicaPart& mine, bool in_parts) {
  StepRequest request{.has_workers = StrategyAccess::workers(core.module->strategy()) != nullptr, .in_parts = in_parts};
  if (mine.scale)
    request.scale = ScaleBy::Device;
  else if (mine.progress.loss_scale)
    request.scale = ScaleBy::Host;
  mine.plan = plan_step(core.settings, request, core.updater->traits(mine.kinds));
  if (!mine.scale || mine.plan.unscale == ScaleBy::Device) return;
  mine.progress.loss_scale = mine.scale->read().scale;
  mine.scale.reset();
}

void reduce(OptimizerCore& core, ReplicaPart& mine, ReduceOp op) {
  core.reducer->reduce(mine, op);
  if (mine.plan.finite == StepPlan::Finite::Device) core.updater->check(mine);
}

/// Gradients that no backward of this optimizer has computed: another one's has, or that of a loss that the program has
/// scaled.
void find_scale(ReplicaPart& mine) {
  const ScalesOfRun* const used = run_local<ScalesOfRun>();
  if (mine.progress.stage != GradientStage::None || used == nullptr || used->scale == 0) return;
  if (used->has_several)
    throw_misuse("losses of different scales have gone backward in this run, and these gradients may be of any of them",
                 "call backward(loss, scaler) of this optimizer instead of scaled(loss).backward()",
                 "reduce_gradients");
  if (used->scale == kScaleOnDevice)
    throw_misuse(
        "the gradients are of a loss that another optimizer's minimize has scaled on the GPU",
        "call backward(loss, scaler) of one optimizer, then reduce_gradients(), unscale(scaler) and step() of each",
        "reduce_gradients");
  mine.progress.loss_scale = used->scale;
}

}  // namespace

bool take_step(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, GradScaler* scaler, const char* call) {
  meet_with_gradients(core, mine, op, call, [&] {
    plan(core, mine, /*in_parts=*/false);
    if (!mine.plan.is_one_pass) return reduce(core, mine, op);
    core.poison.update_or_poison(mine.steps, [&] {
      reduce(core, mine, op);
      core.updater->update(mine);
    });
  });
  if (mine.plan.is_one_pass) {
    publish_step(core, mine);
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
  meet_with_gradients(core, mine, op, call, [&] {
    plan(core, mine, /*in_parts=*/true);
    reduce(core, mine, op);
  });
  find_scale(mine);
  mine.progress.stage = GradientStage::Reduced;
}

void update_and_publish(OptimizerCore& core, ReplicaPart& mine) {
  require_watched_untouched();
  meet("step", {&core, "step", mine.progress.clip_mark},
       [&] { core.poison.update_or_poison(mine.steps, [&] { core.updater->update(mine); }); });
  publish_step(core, mine);
}

}  // namespace lockstep::detail
