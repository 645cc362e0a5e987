#include "lockstep/nn/step/collect.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/loss_scale.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/step/misuse.h"
#include "lockstep/nn/step/recording.h"
#include "lockstep/nn/step/sparse_parameters.h"
#include "lockstep/nn/step/window.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

void require_backward(const ReplicaPart& mine, const at::Tensor& loss, bool is_scaled) {
  const GradientProgress& progress = mine.progress;
  if (progress.is_reduced())
    throw_misuse("the gradients are already reduced", "call step() or zero_grad() before the next backward",
                 "backward");
  if (!loss.defined() || loss.numel() != 1) {
    throw InvalidArgument(errors::kShape,
                          {.what = "a loss must be one number",
                           .seen = loss.defined() ? lockstep::str("shape ", loss.sizes()) : "an undefined tensor",
                           .help = "use average_loss(per_example_losses, global_batch)"});
  }
  if (!loss.requires_grad()) {
    throw InvalidArgument(errors::kOptimizer,
                          {.what = "the loss does not depend on any parameter that requires a gradient",
                           .help = "compute it from model->forward(...) without NoGradGuard or detach()"});
  }
  if (progress.stage == GradientStage::Computed && progress.loss_scale.has_value() != is_scaled) {
    throw_misuse("gradients of scaled and unscaled losses cannot be added",
                 "give the scaler to every backward and minimize of a step, or to none", "backward");
  }
}

/// LibTorch's own text suggests retaining the graph, which would count each gradient twice.
void refuse_second_backward(const c10::Error& error) {
  if (error.msg().find("backward through the graph a second time") == std::string::npos) return;
  throw_misuse(
      "backward has gone through the graph of this loss already",
      "for two optimizers and one loss, call backward once, and reduce_gradients() and step() of each: "
      "first.backward(loss); first.reduce_gradients(); second.reduce_gradients(); first.step(); second.step(); "
      "compute a new loss for every other backward",
      "backward");
}

void require_same_shape(const std::string& name, const at::Tensor& leaf, const at::Tensor& gradient) {
  if (gradient.sizes() == leaf.sizes()) return;
  throw InvalidArgument(errors::kShape,
                        {.what = lockstep::str("the gradient of '", name, "' must have its shape ", leaf.sizes(),
                                               ", got ", gradient.sizes()),
                         .help = "leave grad() to backward; give gradients of your own to optimizer.apply_gradients"});
}

/// Publishes this replica's gradients, and its frozen parameters and training modes.
void show_gradients(const OptimizerCore& core, ReplicaPart& mine) {
  const auto& parameters = core.module->parameters();
  const auto k = static_cast<std::size_t>(mine.index);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (core.group_of[p] < 0) continue;
    const at::Tensor& leaf = parameters[p].leaves[k];
    const at::Tensor& gradient = leaf.grad();
    // Segments are in the parameter's memory order, which usually is the gradient's too. A gradient set by hand may
    // have a different dtype.
    const bool is_ordered = !gradient.defined() || gradient.is_sparse() ||
                            (gradient.strides() == leaf.strides() && gradient.sizes() == leaf.sizes() &&
                             gradient.scalar_type() == leaf.scalar_type() && gradient.device() == leaf.device() &&
                             gradient.is_non_overlapping_and_dense());
    if (!is_ordered) require_same_shape(parameters[p].name, leaf, gradient);
    mine.shown.gradients[p] =
        is_ordered ? gradient : at::empty_like(leaf, leaf.options().requires_grad(false)).copy_(gradient);
  }
  mine.shown.modes = core.module->modes_of(k);
}

/// In the meeting: throws, the same on every replica, if replicas train different parts of the model, or if an
/// observer's marks differ.
void agree(const StepMoment& moment) {
  const OptimizerCore& core = moment.core;
  const ShownGradients& first = core.replicas[0]->shown;
  bool is_alike = true;
  for (const auto& other : core.replicas) is_alike &= other->shown.modes == first.modes;
  if (!is_alike) {
    core.module->require_unchanged();
    core.module->require_alike();
  }
  for (std::size_t i = 0; i < core.observers.all.size(); ++i) {
    const auto differs = [&](const auto& other) { return other->shown.marks[i] != first.marks[i]; };
    if (std::ranges::none_of(core.replicas, differs)) continue;
    c10::SmallVector<std::int64_t, 16> marks;
    for (const auto& replica : core.replicas) marks.push_back(replica->shown.marks[i]);
    core.observers.all[i]->marks_differ(moment, marks, "replica");
  }
  for (const auto& observer : core.observers) observer->agreed(moment);
}

}  // namespace

void go_backward(OptimizerCore& core, ReplicaPart& mine, const at::Tensor& loss, const GradScaler* scaler,
                 const char* call) {
  if (core.is_recording()) refuse_unrecordable(core);
  GradientProgress& progress = mine.progress;
  if (progress.stage == GradientStage::Computed) look_for_dropped(core, mine);
  require_backward(mine, loss, scaler != nullptr);
  const StepMoment moment{core, mine, call};
  for (const auto& observer : core.observers) {
    if (progress.stage == GradientStage::Computed) observer->gradients_taken(moment);
    observer->before_backward(moment, loss);
  }
  progress.stage = GradientStage::Computed;
  if (mine.scale) {
    if (!mine.scale->is_sent) refuse_if_recording(core, "the loss scale was set on the host");
    progress.loss_scale = kScaleOnDevice;
  } else if (scaler != nullptr && !progress.loss_scale) {
    progress.loss_scale = scaler->scale();
  }
  if (ScalesOfRun* const used = scaler == nullptr ? nullptr : run_local<ScalesOfRun>())
    used->note(*progress.loss_scale);
  try {
    if (mine.scale)
      scale_on_device(*mine.scale, loss).backward();
    else
      (scaler == nullptr ? loss : loss.mul(*progress.loss_scale)).backward();
  } catch (const c10::Error& error) {
    refuse_second_backward(error);
    throw;
  }
}

void meet_with_gradients(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, const char* call,
                         FunctionRef<void()> work) {
  if (!core.is_recording()) receive_check(core, mine);
  for (const auto& watcher : watchers_here()) watcher->require_untouched(static_cast<std::size_t>(mine.index));
  show_gradients(core, mine);
  const StepMoment moment{core, mine, call, op};
  for (const auto& observer : core.observers) observer->gradients_shown(moment);
  mine.shown.marks.clear();
  for (const auto& observer : core.observers) mine.shown.marks.push_back(observer->mark(moment));
  const StepCall brought{&core, call, mine.progress.loss_scale.value_or(mine.progress.given_mark)};
  core.reducer->exchange(mine, op, brought);
  // Guards throw alike everywhere. An exception of a program's observer on one replica must not coincide with an update
  // on others.
  const bool agrees_first = core.observers.runs != nullptr;
  if (agrees_first) meet("observers", brought, [&] { agree(moment); });
  bool is_new_sparse = false;
  const auto agree_and_work = [&] {
    if (!agrees_first) agree(moment);
    if (!core.reducer->has_workers()) classify_gradients(core, mine.kinds);
    const bool has_sparse = std::ranges::find(mine.kinds, GradientKind::Sparse) != mine.kinds.end();
    is_new_sparse = has_sparse && has_new_sparse(core, mine);
    if (!is_new_sparse) work();
  };
  meet("gradients", brought, agree_and_work);
  if (!is_new_sparse) return;
  deal_out_new_sparse(core, mine);  // owners change, then all meet again
  meet("gradients", brought, agree_and_work);
}

void classify_gradients(const OptimizerCore& core, std::vector<GradientKind>& kinds) {
  for (std::size_t p = 0; p < kinds.size(); ++p) {
    if (core.group_of[p] < 0) continue;
    kinds[p] = GradientKind::None;
    for (const auto& replica : core.replicas) {
      const at::Tensor& gradient = replica->shown.gradients[p];
      if (!gradient.defined()) continue;
      const auto own = gradient.is_sparse() ? GradientKind::Sparse : GradientKind::Dense;
      if (kinds[p] != GradientKind::None && kinds[p] != own)
        throw_different_kinds(core.module->parameters()[p].name, replica_name(static_cast<std::size_t>(replica->index)),
                              own);
      kinds[p] = own;
    }
  }
}

void throw_different_kinds(const std::string& parameter, const std::string& replica, GradientKind kind) {
  throw InvalidArgument(
      errors::kOptimizer,
      {.what = lockstep::str("'", parameter, "' has a sparse gradient on one replica and a dense one on another"),
       .seen = lockstep::str(replica, " has a ", kind == GradientKind::Sparse ? "sparse" : "dense", " one"),
       .help = "use the parameter in the same way on every replica"});
}

void drop_gradients(const OptimizerCore& core, ReplicaPart& mine) {
  const auto& parameters = core.module->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (core.group_of[p] < 0) continue;
    at::Tensor leaf = parameters[p].leaves[static_cast<std::size_t>(mine.index)];
    leaf.mutable_grad().reset();
    mine.shown.gradients[p].reset();
  }
  for (OwnedSegment& segment : mine.owned) {
    segment.sum.reset();
    segment.parts.clear();
  }
  mine.reduced.pulled.clear();
  mine.scale.reset();
  if (core.has_failed_run(mine)) mine.window_calls = 0;  // it may have stopped at a different call on each replica
  mine.progress = {.failed_runs = core.runs.failed};
  for (const auto& observer : core.observers) observer->dropped({core, mine});
}

void require_no_failed_run(const OptimizerCore& core, const ReplicaPart& mine, const char* operation) {
  if (!core.has_failed_run(mine)) return;
  throw_misuse("a run has failed since the last step, and may have left gradients behind",
               "call zero_grad() before backward, in the next run", operation);
}

}  // namespace lockstep::detail
