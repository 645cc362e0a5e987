#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/block_norm.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_local.h"

// What may happen to reduced gradients before the update: being shown, clipping, scaling, and looking for infinities.
namespace lockstep {

torch::OrderedDict<std::string, at::Tensor> OptimizerCore::gradients() {
  Local& local = local_here("gradients");
  require_no_failed_run(local, "gradients");
  if (!local.is_reduced)
    throw_use("there are no reduced gradients to show", "call reduce_gradients() first", "gradients");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> copies(module_->parameters().size());
  meet("gradients", {this, "gradients", local.clipped, &local}, [&] {
    for (const Local* owner : shown_by_all(local)) {
      const auto& shard = shards_[static_cast<std::size_t>(owner->replica)];
      for (std::size_t s = 0; s < shard.size(); ++s) {
        const at::Tensor& reduced = owner->reduced[s];
        if (!reduced.defined()) continue;
        const auto p = static_cast<std::size_t>(shard[s].parameter);
        if (whole_[p]) {
          copies[p] = reduced.clone();
          continue;
        }
        if (!copies[p].defined()) copies[p] = at::empty_like(reduced);
        slice_of(copies[p], shard[s]).copy_(slice_of(reduced, shard[s]));
      }
    }
  });
  torch::OrderedDict<std::string, at::Tensor> named;
  for (std::size_t p = 0; p < copies.size(); ++p) {
    if (copies[p].defined()) named.insert(module_->parameters()[p].name, std::move(copies[p]));
  }
  return named;
}

double OptimizerCore::clip_global_norm(double max_norm) {
  Local& local = local_here("clip_global_norm");
  if (!(max_norm > 0))
    throw InvalidArgument(errors::kBadOption, {.what = str("the largest norm must be positive, not ", max_norm)});
  if (!local.is_reduced)
    throw_use("clipping comes after the reduction over replicas", "call reduce_gradients() first", "clip_global_norm");
  require_unscaled(local, "clip_global_norm");
  require_real_gradients(local, "clip_global_norm");
  const double norm = global_norm(local, max_norm);
  local.clipped = 5 * local.clipped + max_norm;
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1.0) scale_gradients(factor);
  return norm;
}

double OptimizerCore::global_norm(Local& local, double max_norm) {
  const at::NoGradGuard no_grad;
  const auto& shard = shards_[static_cast<std::size_t>(local.replica)];
  for (std::size_t s = 0; s < shard.size(); ++s) {
    const std::size_t first = first_block_[static_cast<std::size_t>(shard[s].parameter)];
    double* sums = block_sums_.data() + first + static_cast<std::size_t>(shard[s].begin / kShardBlock);
    const auto blocks = static_cast<std::size_t>((shard[s].end - shard[s].begin + kShardBlock - 1) / kShardBlock);
    std::fill_n(sums, std::max<std::size_t>(blocks, 1), 0.0);
    if (!local.reduced[s].defined()) continue;
    const bool sparse = local.reduced[s].is_sparse();
    if (sparse) local.reduced[s] = local.reduced[s].coalesce();  // rows that come twice count by their sum
    const at::Tensor values = sparse ? local.reduced[s]._values().reshape({-1}) : slice_of(local.reduced[s], shard[s]);
    sum_squares_in_blocks(values, sums, sparse ? 1 : blocks);
  }
  double norm = 0;
  meet("clip_global_norm", {this, "clip_global_norm", max_norm}, [&] { norm = std::sqrt(tree_sum(block_sums_)); });
  return norm;
}

void OptimizerCore::clip_value(double limit) {
  Local& local = local_here("clip_value");
  if (!(limit > 0))
    throw InvalidArgument(errors::kBadOption, {.what = str("the largest value must be positive, not ", limit)});
  if (!local.is_reduced)
    throw_use("clipping comes after the reduction over replicas", "call reduce_gradients() first", "clip_value");
  require_unscaled(local, "clip_value");
  require_real_gradients(local, "clip_value");
  const at::NoGradGuard no_grad;
  for (std::size_t s = 0; s < local.reduced.size(); ++s) {
    if (!local.reduced[s].defined()) continue;
    if (local.reduced[s].is_sparse()) local.reduced[s] = local.reduced[s].coalesce();
    at::Tensor gradient = local.reduced[s].is_sparse() ? local.reduced[s]._values() : gradient_of(local, s);
    gradient.clamp_(-limit, limit);
  }
  local.clipped = 3 * local.clipped + limit;
}

void OptimizerCore::scale_gradients(double factor) {
  Local& local = local_here("scale_gradients");
  const at::NoGradGuard no_grad;
  for (std::size_t s = 0; s < local.reduced.size(); ++s) {
    if (local.reduced[s].defined()) gradient_of(local, s).mul_(factor);
  }
}

/// Every replica looks at all gradients, so that all come to the same answer.
void OptimizerCore::require_real_gradients(const Local& local, const char* operation) const {
  for (std::size_t p = 0; p < local.touched.size(); ++p) {
    const auto& parameter = module_->parameters()[p];
    if (!local.touched[p] || !parameter.leaves[0].is_complex()) continue;
    throw InvalidArgument(errors::kDtype,
                          {.what = str(operation, " is for real gradients; that of '", parameter.name, "' is complex"),
                           .help = "train the real and the imaginary part as parameters of their own"});
  }
}

void OptimizerCore::require_unscaled(const Local& local, const char* operation) const {
  if (local.loss_scale && !local.is_unscaled)
    throw_use("the gradients are still those of the scaled loss", str("call unscale(scaler) before ", operation),
              operation);
}

bool OptimizerCore::unscale(GradScaler& scaler) {
  Local& local = local_here("unscale");
  if (!local.is_reduced)
    throw_use("unscaling comes after the reduction over replicas", "call reduce_gradients() first", "unscale");
  if (local.is_unscaled) throw_use("the gradients are already unscaled", "call unscale() once per step", "unscale");
  if (!local.loss_scale)
    throw_use("the gradients are not of a scaled loss", "go backward by backward(loss, scaler)", "unscale");
  const bool finite = gradients_are_finite();
  scaler.update(finite);
  if (!finite) {
    ++local.skipped;
    drop_gradients(local);
    return false;
  }
  scale_gradients(1.0 / *local.loss_scale);
  local.is_unscaled = true;
  return true;
}

bool OptimizerCore::gradients_are_finite() {
  Local& local = local_here("gradients_are_finite");
  if (!local.is_reduced)
    throw_use("there are no reduced gradients to look at", "call reduce_gradients() first", "gradients_are_finite");
  bool mine = true;
  for (std::size_t s = 0; s < local.reduced.size() && mine; ++s) {
    if (!local.reduced[s].defined()) continue;
    mine = is_finite(local.reduced[s].is_sparse() ? local.reduced[s]._values() : gradient_of(local, s));
  }
  bool all = true;
  meet("gradients_are_finite", {this, "gradients_are_finite", 0, &mine}, [&] {
    for (const bool* theirs : shown_by_all(mine)) all = all && *theirs;
  });
  return all;
}

/// False when the step is to be skipped; throws when the policy says so. Every replica comes to the same answer.
bool OptimizerCore::check_finite(Local& local) {
  struct Verdict {
    int parameter, replica;
    bool by_exclusion;
  } const mine{local.bad_parameter, local.bad_replica, local.bad_by_exclusion};
  Verdict first{-1, -1, false};
  meet("finite check", {this, "step", 0, &mine}, [&] {
    for (const Verdict* theirs : shown_by_all(mine)) {
      if (theirs->parameter >= 0 && (first.parameter < 0 || theirs->parameter < first.parameter)) first = *theirs;
    }
  });
  if (first.parameter < 0) return true;
  if (not_finite_ == NotFinite::SkipStep) return false;
  const std::string& name = module_->parameters()[static_cast<std::size_t>(first.parameter)].name;
  drop_gradients(local);
  throw FailedPrecondition(errors::kNotFinite,
                           {.what = str("the gradient of '", name, "' holds NaN or infinity"),
                            .where = str("step ", local.steps, ", from replica ", first.replica,
                                         first.by_exclusion ? ", or from adding up finite ones" : ""),
                            .seen = "the weights have not been changed",
                            .help = "lower the learning rate or clip; NotFinite::SkipStep leaves such steps out"});
}

}  // namespace lockstep
