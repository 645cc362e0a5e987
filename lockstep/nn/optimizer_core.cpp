#include "lockstep/nn/optimizer_core.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/optimizer_local.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/intra_op.h"
#include "lockstep/strategy/replica_context.h"

namespace lockstep {

OptimizerCore::OptimizerCore(std::shared_ptr<ModuleCore> module, std::vector<Group> groups, InnerFactory make_inner,
                             bool elementwise, detail::StateAccess state_access, detail::FusedUpdate fused_update)
    : module_(std::move(module)),
      groups_(std::move(groups)),
      make_inner_(std::move(make_inner)),
      elementwise_(elementwise),
      state_access_(state_access),
      fused_update_(fused_update) {
  module_->require_unchanged();
  require_valid_options();
  const auto& parameters = module_->parameters();
  group_of_.assign(parameters.size(), -1);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const int p : groups_[g].parameters) {
      int& group = group_of_.at(static_cast<std::size_t>(p));
      if (group >= 0) {
        throw InvalidArgument(
            errors::kOptimizer,
            {.what = str("parameter '", parameters[static_cast<std::size_t>(p)].name, "' is in two groups"),
             .help = "name each parameter in one group"});
      }
      group = static_cast<int>(g);
    }
  }
  whole_.assign(parameters.size(), !elementwise_);
  std::size_t blocks = 0;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const at::Tensor& leaf = parameters[p].leaves[0];
    if (!leaf.is_non_overlapping_and_dense()) whole_[p] = true;
    first_block_.push_back(blocks);
    blocks += std::max<std::size_t>(1, static_cast<std::size_t>((leaf.numel() + kShardBlock - 1) / kShardBlock));
  }
  block_sums_.assign(blocks, 0.0);
  build_shards();
  module_->pin();
}

OptimizerCore::~OptimizerCore() = default;

void OptimizerCore::build_shards() {
  const auto& parameters = module_->parameters();
  std::vector<ShardedParameter> plan_input;
  std::vector<int> planned;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (group_of_[p] < 0) continue;
    plan_input.push_back({parameters[p].leaves[0].numel(), whole_[p]});
    planned.push_back(static_cast<int>(p));
  }
  shards_ = plan_shards(plan_input, static_cast<int>(module_->size()));
  locals_.clear();
  for (std::size_t r = 0; r < module_->size(); ++r) {
    auto local = std::make_unique<Local>();
    local->replica = static_cast<int>(r);
    local->failed_runs = detail::StrategyAccess::failed_runs(module_->strategy());
    std::vector<std::vector<at::Tensor>> by_group(groups_.size());
    for (Segment& segment : shards_[r]) {
      segment.parameter = planned[static_cast<std::size_t>(segment.parameter)];
      const auto p = static_cast<std::size_t>(segment.parameter);
      // `data` has a version counter of its own: leaves are told of updates one by one, by their own replica.
      const at::Tensor values = parameters[p].leaves[r].data();
      at::Tensor view = whole_[p] ? values : slice_of(values, segment);
      by_group[static_cast<std::size_t>(group_of_[p])].push_back(view);
      local->has_16_bit_segments |= view.element_size() == 2;
      local->segments.push_back(std::move(view));
    }
    Groups inner_groups;
    for (std::size_t g = 0; g < groups_.size(); ++g)
      inner_groups.emplace_back(std::move(by_group[g]), groups_[g].options->clone());
    local->inner = make_inner_(inner_groups);
    local->shown.gradients.resize(parameters.size());
    for (const auto& parameter : parameters) local->addresses.push_back(parameter.leaves[r].const_data_ptr());
    local->reduced.resize(local->segments.size());
    local->fused.assign(local->segments.size(), false);
    local->touched.assign(parameters.size(), false);
    local->kinds.assign(parameters.size(), GradientKind::None);
    locals_.push_back(std::move(local));
  }
}

OptimizerCore::Local& OptimizerCore::local_here(const char* operation) {
  const detail::ContextEntry* top = detail::current_context();
  if (top == nullptr || top->replica == nullptr) {
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = str(operation, " belongs inside the function given to strategy.run"),
                              .help = "call it once per replica and step, inside run"});
  }
  if (top->strategy != &module_->strategy()) detail::require_current_strategy(module_->strategy(), operation);
  require_usable(operation);
  return *locals_[static_cast<std::size_t>(top->replica->local_index())];
}

void OptimizerCore::require_usable(const char* operation) const {
  if (!torn_flag_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(torn_mutex_);
  throw FailedPrecondition(errors::kTornWeights,
                           {.what = str("weights are torn at step ", torn_step_, ": restore a checkpoint"),
                            .where = operation,
                            .seen = str("an update failed half-way: ", torn_),
                            .help = "make a new optimizer and set the weights again"});
}

/// Some replicas may have gone backward before another one threw: their gradients belong to a step that never came.
void OptimizerCore::forget_failed_run(Local& local) {
  if (detail::StrategyAccess::failed_runs(module_->strategy()) != local.failed_runs) drop_gradients(local);
}

void OptimizerCore::require_no_failed_run(const Local& local, const char* operation) const {
  if (detail::StrategyAccess::failed_runs(module_->strategy()) == local.failed_runs) return;
  throw_use("a run has failed since the last step, and may have left gradients behind",
            "call zero_grad() before backward, in the next run", operation);
}

void OptimizerCore::backward(const at::Tensor& loss, const GradScaler* scaler) {
  Local& local = local_here("backward");
  forget_failed_run(local);
  if (local.is_reduced)
    throw_use("the gradients are already reduced", "call step() or zero_grad() before the next backward", "backward");
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
  if (local.has_gradients && local.loss_scale.has_value() != (scaler != nullptr)) {
    throw_use("gradients of a scaled loss and of one that is not scaled cannot be added up",
              "give the scaler to every backward and minimize of a step, or to none", "backward");
  }
  local.has_gradients = true;
  if (scaler == nullptr) return loss.backward();
  if (!local.loss_scale) local.loss_scale = scaler->scale();
  loss.mul(*local.loss_scale).backward();
}

void OptimizerCore::show_gradients(Local& local) {
  const auto& parameters = module_->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (group_of_[p] < 0) continue;
    const at::Tensor& leaf = parameters[p].leaves[static_cast<std::size_t>(local.replica)];
    if (leaf.const_data_ptr() != local.addresses[p]) module_->require_unchanged();
    const at::Tensor& gradient = leaf.grad();
    if (local.touched[p] && !gradient.defined()) module_->require_unchanged();  // replaced, or just not used this time
    local.shown.gradients[p] = gradient.defined() ? in_parameter_order(gradient, leaf) : at::Tensor();
  }
}

bool OptimizerCore::can_fuse(const Local& local, std::size_t s, const GradientReduction& reduction) const {
  if (fused_update_ == nullptr) return false;
  const at::Tensor& weights = local.segments[s];
  return weights.is_contiguous() && weights.is_cpu() && weights.scalar_type() == at::kFloat &&
         !reduction.parts(shards_[static_cast<std::size_t>(local.replica)][s]).empty();
}

void OptimizerCore::look_at_gradients(Local& local, const GradientReduction& reduction) {
  local.newly_sparse.clear();
  for (std::size_t p = 0; p < local.kinds.size(); ++p) {
    if (group_of_[p] >= 0) local.kinds[p] = reduction.kind_of(p, module_->parameters()[p].name);
    local.touched[p] = local.kinds[p] != GradientKind::None;
    if (local.kinds[p] != GradientKind::Sparse) continue;
    require_takes_sparse(p, *local.inner);
    if (!whole_[p]) local.newly_sparse.push_back(static_cast<int>(p));
  }
}

void OptimizerCore::reduce_own(Local& local, const GradientReduction& reduction, bool fuse) {
  const at::NoGradGuard no_grad;
  local.bad_parameter = local.bad_replica = -1;
  const auto& kinds = local.kinds;
  const auto& shard = shards_[static_cast<std::size_t>(local.replica)];
  for (std::size_t s = 0; s < shard.size(); ++s) {
    const auto p = static_cast<std::size_t>(shard[s].parameter);
    local.reduced[s] = at::Tensor();
    local.fused[s] = fuse && kinds[p] == GradientKind::Dense && can_fuse(local, s, reduction);
    if (kinds[p] == GradientKind::None || local.fused[s]) continue;
    if (kinds[p] == GradientKind::Sparse) {
      local.owns_sparse = true;
      // Alone: LibTorch's own way, repeated rows and all.
      local.reduced[s] = locals_.size() == 1 ? local.shown.gradients[p] : reduction.reduce_sparse(p);
    } else {
      at::Tensor& mine = local.shown.gradients[p];
      // Autograd may give two parameters one memory: then the sum has to go elsewhere.
      const bool in_place = mine.defined() && mine.storage().use_count() == 1;
      at::Tensor target = in_place ? mine : at::empty_like(module_->parameters()[p].leaves[0].data());
      reduction.reduce(shard[s], target);
      local.reduced[s] = target;
    }
    if (not_finite_ != NotFinite::Ignore && local.bad_parameter < 0) {
      const bool sparse = kinds[p] == GradientKind::Sparse;
      if (is_finite(sparse ? local.reduced[s]._values() : slice_of(local.reduced[s], shard[s]))) continue;
      local.bad_parameter = static_cast<int>(p);
      const int other = reduction.first_not_finite(shard[s], local.replica);
      local.bad_replica = other >= 0 ? other : local.replica;
      local.bad_by_exclusion = other < 0 && locals_.size() > 1;
    }
  }
}

/// The tensor on which clipping and the inner optimizer act.
at::Tensor OptimizerCore::gradient_of(const Local& local, std::size_t s) const {
  const at::Tensor& whole = local.reduced[s];
  const Segment& segment = shards_[static_cast<std::size_t>(local.replica)][s];
  return whole_[static_cast<std::size_t>(segment.parameter)] ? whole : slice_of(whole, segment);
}

void OptimizerCore::copy_options(Local& local) {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    local.inner->param_groups()[g].set_options(groups_[g].options->clone());
}

void OptimizerCore::update_own(Local& local, const GradientReduction* fused_from) {
  const at::NoGradGuard no_grad;
  copy_options(local);
  if (local.owns_sparse) unfold_sparse_states(local);
  for (std::size_t s = 0; s < local.segments.size(); ++s) {
    if (local.reduced[s].defined()) local.segments[s].mutable_grad() = gradient_of(local, s);
  }
  {
    std::optional<OneIntraOpThread> one_thread;
    if (local.has_16_bit_segments && locals_.size() > 1) one_thread.emplace();
    local.inner->step();
  }
  const auto& shard = shards_[static_cast<std::size_t>(local.replica)];
  for (std::size_t s = 0; fused_from != nullptr && s < shard.size(); ++s) {
    if (!local.fused[s]) continue;
    const auto group = static_cast<std::size_t>(group_of_[static_cast<std::size_t>(shard[s].parameter)]);
    fused_update_({*local.inner, group, local.segments[s], fused_from->parts(shard[s]), fused_from->divisor()});
  }
  for (std::size_t s = 0; s < local.segments.size(); ++s) {
    if (local.reduced[s].defined()) local.segments[s].mutable_grad().reset();
    local.reduced[s].reset();
  }
}

void OptimizerCore::do_or_tear(const Local& local, FunctionRef<void()> work) {
  const auto tear = [&](std::string_view why) {
    const std::lock_guard lock(torn_mutex_);
    torn_ = why.substr(0, why.find('\n'));  // LibTorch appends its stack
    torn_step_ = local.steps;
    torn_flag_.store(true, std::memory_order_release);
  };
  try {
    work();
  } catch (const std::exception& e) {
    tear(e.what());
    throw;
  } catch (...) {
    tear("something that is no std::exception was thrown");
    throw;
  }
}

/// Leaves share memory but not version counters: each replica marks its own as changed, so that a backward through
/// values from before the update raises as it does in LibTorch.
void OptimizerCore::finish_step(Local& local) {
  const auto& parameters = module_->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (local.touched[p])
      parameters[p].leaves[static_cast<std::size_t>(local.replica)].unsafeGetTensorImpl()->bump_version();
  }
  // Weights that autocast has cast before the update are of no use after it.
  at::autocast::clear_cache();
  ++local.steps;
  local.is_reduced = false;
  drop_gradients(local);
  if (std::find(local.touched.begin(), local.touched.end(), true) == local.touched.end()) warn_of_unreached(local);
  if (digest_.every > 0 && local.steps % digest_.every == 0) compare_digests(local);
}

/// Every replica compares the same and comes to the same answer.
void OptimizerCore::compare_digests(Local& local) {
  const std::vector<TensorDigest> mine =
      detail::digests_of_replica(*this, static_cast<std::size_t>(local.replica), digest_.buffers);
  std::optional<DigestDifference> difference;
  meet("digest", {this, "step", 0, &mine}, [&] { difference = find_difference(shown_by_all(mine)); });
  if (!difference) return;
  throw DataLoss(
      errors::kDrift,
      {.what = str("replica ", difference->replica, " holds another ", difference->name, " than replica ",
                   difference->agreed_with),
       .where = str("after step ", local.steps),
       .seen = "their digests differ",
       .help = "restore a checkpoint; look for code that writes to one replica's module only, or for bad memory"});
}

void OptimizerCore::drop_gradients(Local& local) {
  const auto& parameters = module_->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (group_of_[p] < 0) continue;
    at::Tensor leaf = parameters[p].leaves[static_cast<std::size_t>(local.replica)];
    leaf.mutable_grad().reset();
    local.shown.gradients[p].reset();
  }
  local.is_reduced = local.is_unscaled = local.has_gradients = false;
  local.loss_scale.reset();
  local.clipped = 0;
  local.accumulated = 0;
  local.failed_runs = detail::StrategyAccess::failed_runs(module_->strategy());
  for (auto& gradient : local.reduced) gradient.reset();
}

/// Parameters with sparse gradients go to one replica as a whole. All replicas have agreed on which; replica 0 does it.
void OptimizerCore::take_over_sparse(Local& local) {
  const std::vector<int> parameters = local.newly_sparse;
  const auto act = [&] {
    for (const int p : parameters) deal_out_whole(p);
  };
  local::Seat* seat = get_replica_context().seat();
  seat ? seat->lead("sparse gradients", nullptr, act) : act();
}

void require_same_call(const local::Seat& seat) {
  const auto of = [&](int k) -> const Brought& { return *static_cast<const Brought*>(seat.payload_of(k)); };
  const Brought& first = of(0);
  const auto fail = [&](std::string what, std::string seen) {
    throw FailedPrecondition(
        errors::kDifferentCollective,
        {.what = std::move(what),
         .seen = std::move(seen),
         .help = "call the same optimizers in the same order, with the same arguments, on every replica"});
  };
  for (int k = 1; k < seat.size(); ++k) {
    const Brought& other = of(k);
    if (std::string_view(other.call) != first.call)
      fail("replicas take a step in different ways",
           str("replica 0 called ", first.call, " while replica ", k, " called ", other.call));
    if (other.optimizer != first.optimizer)
      fail("replicas met with different optimizers",
           str("replicas 0 and ", k, " called ", first.call, " of different optimizers"));
    if (other.argument != first.argument)
      fail(str("replicas gave different arguments to ", first.call),
           str("replica 0 gave ", first.argument, ", replica ", k, " gave ", other.argument));
  }
}

void OptimizerCore::show_module(Local& local) {
  const auto replica = static_cast<std::size_t>(local.replica);
  // Counting costs some microseconds, and what is added to a model is mostly added early.
  const std::int64_t before = local.reductions++;
  const bool look = before < 100 || before % 16 == 0;
  local.shown.module_is_suspect = before == 0 || (look && module_->registered_in(replica) != local.registered);
  local.shown.modes = module_->modes_of(replica);
}

void OptimizerCore::require_same_modules(Local& local, const std::vector<const GradientView*>& shown) const {
  for (const GradientView* theirs : shown) {
    if (!theirs->module_is_suspect) continue;
    module_->require_unchanged();
    local.registered = module_->registered_in(static_cast<std::size_t>(local.replica));
    break;
  }
  for (const GradientView* theirs : shown) {
    if (theirs->modes != shown[0]->modes) module_->require_alike();
  }
}

void OptimizerCore::reduce_and(Local& local, ReduceOp op, const char* call, bool fuse,
                               FunctionRef<void(const GradientReduction&)> then) {
  show_module(local);
  show_gradients(local);
  for (int attempt = 0; attempt < 2; ++attempt) {
    meet("gradients", {this, call, local.loss_scale.value_or(0), &local.shown}, [&] {
      // First what every replica refuses alike, or none does; then what must not fail on one alone.
      const auto shown = shown_by_all(local.shown);
      require_same_modules(local, shown);
      const GradientReduction reduction(shown, op);
      look_at_gradients(local, reduction);
      if (!local.newly_sparse.empty()) return;  // all come back after the shards have changed
      const auto work = [&] {
        reduce_own(local, reduction, fuse);
        then(reduction);
      };
      fuse ? do_or_tear(local, work) : work();
    });
    if (local.newly_sparse.empty()) return;
    take_over_sparse(local);
  }
}

void OptimizerCore::reduce_gradients(ReduceOp op) {
  reduce_gradients(op, op == ReduceOp::Sum ? "reduce_gradients(Sum)" : "reduce_gradients(Mean)");
}

void OptimizerCore::reduce_gradients(ReduceOp op, const char* call) {
  Local& local = local_here("reduce_gradients");
  require_no_failed_run(local, "reduce_gradients");
  if (local.is_reduced)
    throw_use("the gradients are already reduced", "call step() or zero_grad() before the next reduction",
              "reduce_gradients");
  reduce_and(local, op, call, /*fuse=*/false, [](const GradientReduction&) {});
  local.is_reduced = true;
}

void OptimizerCore::step() {
  Local& local = local_here("step");
  require_no_failed_run(local, "step");
  require_valid_options();
  if (!local.is_reduced)
    throw_use("the gradients have not been reduced over replicas",
              "call reduce_gradients() before step(), or use minimize(loss)", "step");
  require_unscaled(local, "step");
  if (not_finite_ != NotFinite::Ignore && !local.loss_scale && !check_finite(local)) {
    ++local.skipped;
    drop_gradients(local);
    return;
  }
  apply_gradients(local);
}

void OptimizerCore::apply_gradients(Local& local) {
  meet("step", {this, "step", local.clipped}, [&] { do_or_tear(local, [&] { update_own(local); }); });
  finish_step(local);
}

bool OptimizerCore::minimize(const at::Tensor& loss, GradScaler* scaler) {
  Local& local = local_here("minimize");
  require_valid_options();
  backward(loss, scaler);
  if (++local.accumulated < accumulate_) return false;
  local.accumulated = 0;
  if (!max_norm_ && !value_limit_ && not_finite_ == NotFinite::Ignore && !scaler) {
    // Nothing to decide between sum and update: each segment is updated right where it was summed.
    reduce_and(local, reduce_op_, "minimize", /*fuse=*/true,
               [&](const GradientReduction& reduction) { update_own(local, &reduction); });
    finish_step(local);
    return true;
  }
  reduce_gradients(reduce_op_, scaler ? "minimize with a GradScaler" : "minimize");
  if (scaler) {
    if (!unscale(*scaler)) return false;
  } else if (not_finite_ != NotFinite::Ignore && !check_finite(local)) {
    ++local.skipped;
    drop_gradients(local);
    return false;
  }
  if (max_norm_) clip_global_norm(*max_norm_);
  if (value_limit_) clip_value(*value_limit_);
  apply_gradients(local);
  return true;
}

}  // namespace lockstep
