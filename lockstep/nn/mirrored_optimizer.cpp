#include "lockstep/nn/mirrored_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <typeinfo>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/step/check_and_clip.h"
#include "lockstep/nn/step/collect.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/given_gradients.h"
#include "lockstep/nn/step/loss_scale.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/step/misuse.h"
#include "lockstep/nn/step/publish.h"
#include "lockstep/nn/step/update.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/gpu.h"

// The phases of a step, one after the other: collect, reduce, check and clip, update, publish. Each is a file in step/.
namespace lockstep {

using detail::OptimizerCore;
using detail::part_here;
using detail::ReplicaPart;
using detail::throw_misuse;

namespace {

/// Collect and reduce: one meeting. `may_leave_to_update`: the update may add up by itself, since nothing reads the sums
/// before it.
void collect_and_reduce(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, const char* call,
                        bool may_leave_to_update = false) {
  detail::require_no_failed_run(core, mine, "reduce_gradients");
  if (mine.progress.is_reduced())
    throw_misuse("the gradients are already reduced", "call step() or zero_grad() before the next reduction",
                 "reduce_gradients");
  const detail::OptimizerSettings& settings = core.settings;
  const bool checks = settings.not_finite != NotFinite::Ignore;
  detail::meet_with_gradients(core, mine, op, call, [&] {
    const bool can_check = (mine.scale || (checks && !mine.progress.loss_scale)) && can_check_on_device(core, mine);
    mine.checks_on_device = can_check;
    if (mine.scale && !can_check) {  // such as for sparse gradients
      mine.progress.loss_scale = mine.scale->read().scale;
      mine.scale.reset();
    }
    core.reducer->reduce(mine, {.op = op,
                                .may_leave_to_update = may_leave_to_update && mine.checks_on_device && !mine.scale,
                                .find_not_finite = checks && !mine.checks_on_device});
    if (mine.checks_on_device) check_on_device(core, mine);
  });
  // A backward of another optimizer has made them, or of a loss that the program has scaled.
  const detail::RunNotes* const notes = detail::current_context()->notes;
  if (mine.progress.stage == detail::GradientStage::None && notes != nullptr && notes->loss_scale != 0) {
    if (notes->has_several_scales)
      throw_misuse(
          "losses of different scales have gone backward in this run, and these gradients may be of any of them",
          "call backward(loss, scaler) of this optimizer instead of scaled(loss).backward()", "reduce_gradients");
    if (notes->loss_scale == detail::kScaleOnDevice)
      throw_misuse(
          "the gradients are of a loss that another optimizer's minimize has scaled on the GPU",
          "call backward(loss, scaler) of one optimizer, then reduce_gradients(), unscale(scaler) and step() of each",
          "reduce_gradients");
    mine.progress.loss_scale = notes->loss_scale;
  }
  mine.progress.stage = detail::GradientStage::Reduced;
}

/// Update and publish: one meeting.
void update_and_publish(OptimizerCore& core, ReplicaPart& mine) {
  detail::require_watched_untouched();
  detail::meet("step", {&core, "step", mine.progress.clip_mark}, [&] {
    core.poison.update_or_poison(mine.steps, [&] { update_owned(core, mine); });
    if (mine.scale) update_scale_on_device(*mine.scale, core, mine);
  });
  publish_step(core, mine);
}

/// All phases in one meeting, where nothing has to be decided between sum and update: each segment is updated right
/// after it was summed, or in the same pass over memory.
void take_whole_step(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, const char* call) {
  mine.checks_on_device = false;
  const detail::ReduceRequest request{.op = op, .may_leave_to_update = has_fused_update(core)};
  detail::meet_with_gradients(core, mine, op, call, [&] {
    core.poison.update_or_poison(mine.steps, [&] {
      core.reducer->reduce(mine, request);
      update_owned(core, mine);
    });
  });
  publish_step(core, mine);
}

/// The phases after the gradients of this replica are there. Returns whether the weights were updated.
bool reduce_and_update(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, GradScaler* scaler, const char* call) {
  const detail::OptimizerSettings& settings = core.settings;
  if (!settings.checks_before_update() && scaler == nullptr) {
    take_whole_step(core, mine, op, call);
    return true;
  }
  collect_and_reduce(core, mine, op, call, !settings.clip_global_norm && !settings.clip_value);
  if (mine.scale) {
    unscale_on_device(*mine.scale, mine);
    mine.progress.stage = detail::GradientStage::Unscaled;
  } else if (scaler) {
    if (!detail::unscale(core, mine, *scaler)) return false;
  } else if (settings.not_finite != NotFinite::Ignore && !mine.checks_on_device && !may_update(core, mine)) {
    return false;
  }
  if (settings.clip_global_norm) detail::clip_global_norm_unseen(core, mine, *settings.clip_global_norm);
  if (settings.clip_value) detail::clip_value(core, mine, *settings.clip_value);
  update_and_publish(core, mine);
  return true;
}

/// Inside run the calling replica's own: another's may be a step ahead.
const ReplicaPart& counting_part(const OptimizerCore& core) {
  const detail::ContextEntry* top = detail::current_context();
  const bool here = top != nullptr && top->replica != nullptr && top->strategy == &core.module->strategy();
  ReplicaPart& part = *core.replicas[here ? static_cast<std::size_t>(top->replica->local_index()) : 0];
  if (here) {
    settle_checks(core, part);
  } else {
    detail::settle_digests(core);
    settle_all(core, detail::settle_checks);
  }
  return part;
}

}  // namespace

bool MirroredOptimizerBase::minimize(const at::Tensor& loss) { return minimize(loss, nullptr); }
bool MirroredOptimizerBase::minimize(const at::Tensor& loss, GradScaler& scaler) { return minimize(loss, &scaler); }

bool MirroredOptimizerBase::minimize(const at::Tensor& loss, GradScaler* scaler) {
  OptimizerCore& core = *core_;
  ReplicaPart& mine = part_here(core, "minimize");
  require_valid_options(core, mine);
  const detail::OptimizerSettings& settings = core.settings;
  if (detail::has_failed_run(core, mine)) drop_gradients(core, mine);
  mine.steps_beside_window = 0;
  int calls = mine.progress.accumulated + 1;
  if (calls > 1 && calls >= settings.accumulate) calls -= detail::drop_calls_of_window(core, mine);
  if (calls >= settings.accumulate) core.reducer->start(mine, settings.reduce_op);
  const bool scales_on_device =
      scaler && mine.progress.stage == detail::GradientStage::None && detail::can_scale_on_device(core, loss);
  mine.scale = scales_on_device ? detail::LossScale::of_replica(*scaler) : nullptr;
  go_backward(core, mine, loss, scaler);
  mine.progress.accumulated = calls < settings.accumulate ? calls : 0;
  if (calls < settings.accumulate) {
    detail::sample_gradients(core, mine);
    ++mine.window_calls;
    return false;
  }
  const char* const call = scaler ? "minimize with a GradScaler" : "minimize";
  return reduce_and_update(core, mine, settings.reduce_op, scaler, call);
}

bool MirroredOptimizerBase::apply_gradients(const std::vector<at::Tensor>& gradients, GradientsOf whose) {
  return apply_gradients(detail::with_names(*core_, gradients), whose);
}
bool MirroredOptimizerBase::apply_gradients(const torch::OrderedDict<std::string, at::Tensor>& gradients,
                                            GradientsOf whose) {
  OptimizerCore& core = *core_;
  ReplicaPart& mine = part_here(core, "apply_gradients");
  require_valid_options(core, mine);
  detail::take_gradients(core, mine, gradients, whose);
  const bool is_sum = whose == GradientsOf::AllReplicas;
  return reduce_and_update(core, mine, is_sum ? ReduceOp::Sum : core.settings.reduce_op, nullptr,
                           is_sum ? detail::kGivenByAll : "apply_gradients(ThisReplica)");
}

void MirroredOptimizerBase::backward(const at::Tensor& loss) { backward(loss, nullptr); }
void MirroredOptimizerBase::backward(const at::Tensor& loss, const GradScaler& scaler) { backward(loss, &scaler); }

void MirroredOptimizerBase::backward(const at::Tensor& loss, const GradScaler* scaler) {
  ReplicaPart& mine = part_here(*core_, "backward");
  go_backward(*core_, mine, loss, scaler);
  detail::sample_gradients(*core_, mine);
}

void MirroredOptimizerBase::reduce_gradients() { reduce_gradients(core_->settings.reduce_op); }
void MirroredOptimizerBase::reduce_gradients(ReduceOp op) {
  const char* call = op == ReduceOp::Sum ? "reduce_gradients(Sum)" : "reduce_gradients(Mean)";
  ReplicaPart& mine = part_here(*core_, "reduce_gradients");
  detail::warn_of_changed_gradients(*core_, mine);
  // One may be the last batch of an epoch.
  const bool is_alone = mine.window_calls == 0 && mine.progress.backwards <= 1;
  if (core_->settings.accumulate > 1 && is_alone && ++mine.steps_beside_window > 1 &&
      core_->said.is_first(detail::Warning::UnusedWindow))
    say_warning(
        "set_accumulate is for minimize alone: reduce_gradients and step update the weights at every call. Call "
        "backward several times before reduce_gradients, or minimize");
  mine.window_calls = 0;  // of a window that ends here, where a replica may have made fewer calls
  collect_and_reduce(*core_, mine, op, call);
  detail::sample_gradients(*core_, mine);
}

bool MirroredOptimizerBase::gradients_are_finite() {
  ReplicaPart& mine = part_here(*core_, "gradients_are_finite");
  detail::require_reduced(mine, "gradients_are_finite");
  return are_all_finite(*core_, mine);
}

bool MirroredOptimizerBase::unscale(GradScaler& scaler) {
  return detail::unscale(*core_, part_here(*core_, "unscale"), scaler);
}
double MirroredOptimizerBase::clip_global_norm(double max_norm) {
  ReplicaPart& mine = part_here(*core_, "clip_global_norm");
  detail::require_same_clip(*core_, "clip_global_norm", max_norm);
  return detail::clip_global_norm(*core_, mine, max_norm);
}
void MirroredOptimizerBase::clip_value(double limit) {
  ReplicaPart& mine = part_here(*core_, "clip_value");
  detail::require_same_clip(*core_, "clip_value", limit);
  detail::clip_value(*core_, mine, limit);
}

void MirroredOptimizerBase::step() {
  OptimizerCore& core = *core_;
  ReplicaPart& mine = part_here(core, "step");
  detail::require_no_failed_run(core, mine, "step");
  require_valid_options(core, mine);
  if (!mine.progress.is_reduced())
    throw_misuse("the gradients have not been reduced over replicas",
                 "call reduce_gradients() before step(), or use minimize(loss)", "step");
  detail::require_unscaled(mine, "step");
  detail::require_own_gradients(core, mine, "step");
  if ((core.settings.clip_global_norm || core.settings.clip_value) && mine.progress.clip_mark == 0 &&
      core.said.is_first(detail::Warning::UnusedClipping))
    say_warning(
        "set_clip_global_norm and set_clip_value are for minimize alone: these gradients are not clipped. Call "
        "clip_global_norm(max_norm) or clip_value(limit) between reduce_gradients and step");
  const bool checks =
      core.settings.not_finite != NotFinite::Ignore && !mine.progress.loss_scale && !mine.checks_on_device;
  if (checks && !may_update(core, mine)) return;
  update_and_publish(core, mine);
}

void MirroredOptimizerBase::zero_grad() {
  ReplicaPart& mine = part_here(*core_, "zero_grad");
  // After a failed run it is what one is asked to do.
  if (!has_failed_run(*core_, mine))
    detail::warn_of_ended_window(*core_, mine, "zero_grad()", mine.progress.accumulated);
  drop_gradients(*core_, mine);
}

torch::OrderedDict<std::string, at::Tensor> MirroredOptimizerBase::gradients() {
  ReplicaPart& mine = part_here(*core_, "gradients");
  detail::require_no_failed_run(*core_, mine, "gradients");
  detail::require_reduced(mine, "gradients");
  const at::NoGradGuard no_grad;
  const auto& parameters = core_->module->parameters();
  std::vector<at::Tensor> copies(parameters.size());
  const at::Device here = get_replica_context().device();
  detail::meet("gradients", {core_.get(), "gradients", mine.progress.clip_mark}, [&] {
    for (const auto& owner : core_->replicas) {
      for (const detail::OwnedSegment& segment : owner->owned) {
        if (!segment.sum.defined()) continue;
        at::Tensor& copy = copies[static_cast<std::size_t>(segment.where.parameter)];
        if (segment.is_whole) {
          copy = gpu::bring_here(segment.sum, here).clone();
          continue;
        }
        if (!copy.defined()) copy = at::empty_like(segment.sum, segment.sum.options().device(here));
        detail::slice_of(copy, segment.where).copy_(gpu::bring_here(segment.gradient(), here));
      }
    }
  });
  torch::OrderedDict<std::string, at::Tensor> named;
  for (std::size_t p = 0; p < copies.size(); ++p) {
    if (copies[p].defined()) named.insert(parameters[p].name, std::move(copies[p]));
  }
  return named;
}

void MirroredOptimizerBase::set_reduce_op(ReduceOp op) {
  detail::require_outside_of_run("set_reduce_op");
  core_->settings.reduce_op = op;
}
void MirroredOptimizerBase::set_clip_global_norm(std::optional<double> max_norm) {
  detail::require_outside_of_run("set_clip_global_norm");
  if (max_norm) detail::require_positive(*max_norm, "max_norm");
  core_->settings.clip_global_norm = max_norm;
}
void MirroredOptimizerBase::set_clip_value(std::optional<double> limit) {
  detail::require_outside_of_run("set_clip_value");
  if (limit) detail::require_positive(*limit, "limit");
  core_->settings.clip_value = limit;
}
void MirroredOptimizerBase::set_not_finite(NotFinite policy) {
  detail::require_outside_of_run("set_not_finite");
  core_->settings.not_finite = policy;
}
void MirroredOptimizerBase::set_accumulate(int calls) {
  detail::require_outside_of_run("set_accumulate");
  if (calls < 1)
    throw InvalidArgument(errors::kBadOption, {.what = str("calls must be >= 1, got ", calls),
                                               .where = "set_accumulate",
                                               .help = "set_accumulate(1) updates at every call of minimize"});
  core_->settings.accumulate = calls;
}
void MirroredOptimizerBase::set_digest(const DigestOptions& options) {
  detail::require_outside_of_run("set_digest");
  if (options.every < 0)
    throw InvalidArgument(errors::kBadOption, {.what = str("every must be >= 0, got ", options.every),
                                               .where = "set_digest",
                                               .help = "set_digest({.every = 0}) never compares"});
  core_->settings.digest = options;
}
namespace {

void require_learning_rate(double rate) {
  detail::require_outside_of_run("set_learning_rate");
  if (std::isfinite(rate) && rate >= 0) return;
  throw InvalidArgument(errors::kBadOption, {.what = str("a learning rate must be finite and >= 0, got ", rate),
                                             .where = "set_learning_rate",
                                             .help = "check the schedule that it comes from"});
}

}  // namespace

void MirroredOptimizerBase::set_learning_rate(double rate) {
  require_learning_rate(rate);
  for (std::size_t g = 1; g < core_->groups.size(); ++g) {
    if (learning_rate(g) == learning_rate(0) || !core_->said.is_first(detail::Warning::EqualRates)) continue;
    say_warning(str("set_learning_rate gives all parameter groups the rate ", rate, ", but group 0 had ",
                    learning_rate(0), " and group ", g, " had ", learning_rate(g),
                    ". Use set_learning_rate(rate, group) to keep them apart"));
  }
  for (auto& group : core_->groups) group.options->set_lr(rate);
}

void MirroredOptimizerBase::set_learning_rate(double rate, std::size_t group) {
  require_learning_rate(rate);
  any_options(group).set_lr(rate);
}

torch::optim::OptimizerOptions& MirroredOptimizerBase::any_options(std::size_t group) const {
  if (group >= core_->groups.size()) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("there is no parameter group ", group),
                           .seen = counted(static_cast<int>(core_->groups.size()), "group"),
                           .help = "groups are numbered from 0 in the order given to make_optimizer"});
  }
  return *core_->groups[group].options;
}

torch::optim::OptimizerOptions& MirroredOptimizerBase::options_outside_of_run(std::size_t group) const {
  detail::require_outside_of_run("options");
  return any_options(group);
}

void MirroredOptimizerBase::throw_other_options() {
  throw InvalidArgument(errors::kOptimizer, {.what = "the optimizer's options are of another class",
                                             .where = "options",
                                             .help = "leave the class out: optimizer.options()"});
}

double MirroredOptimizerBase::learning_rate(std::size_t group) const { return any_options(group).get_lr(); }
std::size_t MirroredOptimizerBase::group_count() const { return core_->groups.size(); }
std::int64_t MirroredOptimizerBase::steps() const { return counting_part(*core_).steps; }
std::int64_t MirroredOptimizerBase::skipped_steps() const { return counting_part(*core_).skipped; }

std::ostream& operator<<(std::ostream& out, const MirroredOptimizerBase& optimizer) {
  const torch::optim::Optimizer& inner = *optimizer.core()->replicas[0]->inner;
  return out << str(c10::demangle(typeid(inner).name()), " on ",
                    counted(static_cast<std::int64_t>(optimizer.core()->module->size()), "replica"), ": ",
                    counted(optimizer.steps(), "step"), ", learning rate ", optimizer.learning_rate());
}

OptimizerState MirroredOptimizerBase::state() const { return detail::read_state(*core_); }
void MirroredOptimizerBase::load_state(const OptimizerState& state) { detail::write_state(*core_, state); }
std::vector<TensorDigest> MirroredOptimizerBase::digests() const { return detail::digests_of_training(*core_); }

std::shared_ptr<OptimizerCore> detail::make_optimizer_core(Strategy& strategy, const std::shared_ptr<ModuleCore>& model,
                                                           std::vector<GroupRecipe> groups, const OptimizerClass& cls) {
  require_cross_replica(strategy, "make_optimizer");
  if (!cls.takes_gradients_once) {
    throw Unimplemented(
        errors::kOptimizer,
        {.what = "LBFGS cannot be mirrored: it evaluates the loss again and again inside one step",
         .help = "use SGD, Adam, AdamW, RMSprop, Adagrad or another optimizer whose step takes the gradients once"});
  }
  if (&model->strategy() != &strategy) {
    throw InvalidArgument(errors::kMixedStrategies, {.what = "the model belongs to another strategy",
                                                     .where = "make_optimizer",
                                                     .help = "make model and optimizer with the same strategy"});
  }
  if (groups.empty()) {
    throw InvalidArgument(errors::kOptimizer, {.what = "an optimizer needs at least one parameter group",
                                               .where = "make_optimizer",
                                               .help = "give options for all parameters: {{{\"\"}, SGDOptions(0.1)}}"});
  }
  return std::make_shared<OptimizerCore>(model, assign_groups(*model, std::move(groups)), cls);
}

}  // namespace lockstep
