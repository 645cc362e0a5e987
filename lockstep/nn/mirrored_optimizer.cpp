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
#include "lockstep/nn/guards/drift.h"
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
#include "lockstep/nn/step/take_step.h"
#include "lockstep/nn/step/window.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/strategy/gpu.h"

// The functions that a program calls. The phases of a step are in step/take_step.cpp.
namespace lockstep {

using detail::OptimizerCore;
using detail::part_here;
using detail::ReplicaPart;
using detail::throw_misuse;

namespace {

/// Inside run the calling replica's own: another's may be a step ahead.
const ReplicaPart& counting_part(const OptimizerCore& core) {
  const detail::ContextEntry* top = detail::current_context();
  const bool here = top != nullptr && top->replica != nullptr && top->strategy == &core.module->strategy();
  ReplicaPart& part = *core.replicas[here ? static_cast<std::size_t>(top->replica->local_index()) : 0];
  if (here) {
    settle_checks(core, part);
  } else {
    core.observers.drift->settle();
    settle_all(core, detail::settle_checks);
  }
  return part;
}

}  // namespace

bool MirroredOptimizerBase::minimize(const at::Tensor& loss, GradScaler* scaler) {
  OptimizerCore& core = *core_;
  ReplicaPart& mine = part_here(core, "minimize");
  const char* const call = scaler ? "minimize with a GradScaler" : "minimize";
  follow_options(core, mine);
  const detail::OptimizerSettings& settings = core.settings;
  if (core.has_failed_run(mine)) drop_gradients(core, mine);
  int calls = mine.progress.accumulated + 1;
  if (calls > 1 && calls >= settings.accumulate) calls -= detail::drop_calls_of_window(core, mine);
  if (calls >= settings.accumulate) core.reducer->start(mine, settings.reduce_op);
  const bool scales_on_device =
      scaler && mine.progress.stage == detail::GradientStage::None && detail::can_scale_on_device(core, loss);
  mine.scale = scales_on_device ? detail::LossScale::of_replica(*scaler) : nullptr;
  go_backward(core, mine, loss, scaler, call);
  mine.progress.accumulated = calls < settings.accumulate ? calls : 0;
  if (mine.progress.accumulated == 0) return take_step(core, mine, settings.reduce_op, scaler, call);
  let_gradients_wait(core, mine, call);
  ++mine.window_calls;
  return false;
}

bool MirroredOptimizerBase::apply_gradients(const std::vector<at::Tensor>& gradients, GradientsOf whose) {
  return apply_gradients(detail::with_names(*core_, gradients), whose);
}
bool MirroredOptimizerBase::apply_gradients(const torch::OrderedDict<std::string, at::Tensor>& gradients,
                                            GradientsOf whose) {
  OptimizerCore& core = *core_;
  ReplicaPart& mine = part_here(core, "apply_gradients");
  follow_options(core, mine);
  detail::take_gradients(core, mine, gradients, whose);
  const bool is_sum = whose == GradientsOf::AllReplicas;
  return take_step(core, mine, is_sum ? ReduceOp::Sum : core.settings.reduce_op, nullptr,
                   is_sum ? detail::kGivenByAll : "apply_gradients(ThisReplica)");
}

void MirroredOptimizerBase::backward(const at::Tensor& loss) { backward(loss, nullptr); }
void MirroredOptimizerBase::backward(const at::Tensor& loss, const GradScaler& scaler) { backward(loss, &scaler); }

void MirroredOptimizerBase::backward(const at::Tensor& loss, const GradScaler* scaler) {
  ReplicaPart& mine = part_here(*core_, "backward");
  if (core_->has_failed_run(mine)) drop_gradients(*core_, mine);
  go_backward(*core_, mine, loss, scaler, "backward");
  let_gradients_wait(*core_, mine, "backward");
}

void MirroredOptimizerBase::reduce_gradients() { reduce_gradients(core_->settings.reduce_op); }
void MirroredOptimizerBase::reduce_gradients(ReduceOp op) {
  const char* call = op == ReduceOp::Sum ? "reduce_gradients(Sum)" : "reduce_gradients(Mean)";
  ReplicaPart& mine = part_here(*core_, "reduce_gradients");
  const StepMoment moment{*core_, mine, "reduce_gradients", op};
  for (const auto& observer : core_->observers) observer->gradients_taken(moment);
  mine.window_calls = 0;  // calls of a window that ends here, in which a replica may have made fewer
  reduce_in_parts(*core_, mine, op, call);
  for (const auto& observer : core_->observers) observer->gradients_wait(moment);
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
  follow_options(core, mine);
  if (!mine.progress.is_reduced())
    throw_misuse("the gradients have not been reduced over replicas",
                 "call reduce_gradients() before step(), or use minimize(loss)", "step");
  detail::require_unscaled(mine, "step");
  for (const auto& observer : core.observers) observer->gradients_taken({core, mine, "step"});
  const bool checks = mine.plan.finite == detail::StepPlan::Finite::Host && !mine.progress.loss_scale;
  if (checks && !passes_finite_check(core, mine)) return;
  update_and_publish(core, mine);
}

void MirroredOptimizerBase::zero_grad() {
  ReplicaPart& mine = part_here(*core_, "zero_grad");
  // After a failed run the program is expected to call this.
  if (!core_->has_failed_run(mine))
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
void MirroredOptimizerBase::set_non_finite_policy(NonFinitePolicy policy) {
  detail::require_outside_of_run("set_non_finite_policy");
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
  // An observer only while it is on: the first one.
  const bool was_on = core_->settings.digest.every > 0;
  auto& [all, drift, runs] = core_->observers;
  if (options.every > 0 && !was_on) all.insert(all.begin(), drift);
  if (options.every == 0 && was_on) {
    drift->settle();
    all.erase(all.begin());
  }
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
    if (learning_rate(g) == learning_rate(0) || !core_->equal_rates.is_first()) continue;
    say_warning(str("set_learning_rate gives all parameter groups the rate ", rate, ", but group 0 had ",
                    learning_rate(0), " and group ", g, " had ", learning_rate(g),
                    ". Use set_learning_rate(rate, group) to keep them apart"));
  }
  for (auto& group : core_->groups) group.options->set_lr(rate);
}

void MirroredOptimizerBase::observe(std::shared_ptr<StepObserver> observer) {
  detail::require_outside_of_run("observe");
  detail::observe_steps(*core_, std::move(observer));
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
