#include <ATen/core/Reduction.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/guards/guards.h"
#include "lockstep/nn/loss_graph.h"
#include "lockstep/nn/loss_tags.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/misuse.h"
#include "lockstep/nn/step/warn_once.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/differentiable.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {

/// Losses given to optimizers in windows of several calls, in a replica's part of a run (run_local).
struct LossesOfBatch {
  int count = 0;
};

namespace {

namespace nodes = torch::autograd::generated;
using torch::autograd::Node;

/// A single number has no other mean. Not every version of LibTorch records how many there were.
template <class Mean>
bool is_of_several(const Mean& mean) {
  if constexpr (requires { mean.self_sym_numel > 1; })
    return mean.self_sym_numel > 1;
  else
    return true;
}

template <class... Losses>
bool is_mean_of_any(const Node& node) {
  const auto is_mean = [](const auto* loss) { return loss != nullptr && loss->reduction == at::Reduction::Mean; };
  return (is_mean(dynamic_cast<const Losses*>(&node)) || ...);
}

/// Whether a replica averaged over its own rows: by mean(), or by a loss function's default reduction. Losses missing
/// in the list end in mean(). A mean of average_loss's result is a mean of shares.
bool is_mean_of_rows(const Node& node) {
  const auto* const mean = dynamic_cast<const nodes::MeanBackward0*>(&node);
  const bool is_mean = mean != nullptr ? is_of_several(*mean) : is_one_of(node, {"Mean"});
  if (is_mean) return !contains_tagged(node, LossTag::Averaged);
  const bool is_loss =
      is_one_of(node, {"NllLoss", "NllLoss2D", "MseLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits",
                       "SmoothL1Loss", "HuberLoss", "SoftMarginLoss", "MultiMarginLoss", "MultilabelMarginLoss"});
  return is_loss &&
         is_mean_of_any<nodes::NllLossBackward0, nodes::NllLoss2DBackward0, nodes::MseLossBackward0,
                        nodes::BinaryCrossEntropyBackward0, nodes::BinaryCrossEntropyWithLogitsBackward0,
                        nodes::SmoothL1LossBackward0, nodes::HuberLossBackward0, nodes::SoftMarginLossBackward0,
                        nodes::MultiMarginLossBackward0, nodes::MultilabelMarginLossBackward0>(node);
}

/// Itself, or a term of a sum. A later division or multiplication is taken for a correct scaling.
bool has_mean_of_rows(const at::Tensor& loss) {
  return any_node(loss.grad_fn().get(), is_mean_of_rows, [](const Node& node) {
    return is_one_of(node, {"Add", "Sub", "Neg", "Clone", "Squeeze", "ToCopy", "Unsqueeze", "View"});
  });
}

/// Properties of the losses behind the gradients, needed once the reduce operation is known.
struct LossTraits {
  bool has_mean = false;  ///< a term is a mean over this replica's rows
  bool is_share = false;  ///< divided by the rows of all replicas
  bool is_sum = false;    ///< summed over the losses of all replicas
  int batches = 0;        ///< runs with a loss divided by the rows of only its batch
};

/// Finds losses that do not fit an optimizer, from the tensor and from how it was computed.
class UnfitLosses final : public StepObserver {
 public:
  explicit UnfitLosses(const OptimizerCore& core)
      : all_replicas_(core.module->strategy().num_replicas_in_sync()), traits_(core.replicas.size()) {}

  void before_backward(const StepMoment& moment, const at::Tensor& loss) override {
    LossTraits& traits = traits_[static_cast<std::size_t>(moment.replica())];
    if (moment.core.settings.accumulate > 1) require_size_of_window(moment, traits, loss);
    const LossTags own = tags_of(loss);
    if (own.has(LossTag::Averaged)) {  // unchanged from average_loss
      traits.is_share |= all_replicas_ > 1 && (own.has(LossTag::Unsized) || own.has(LossTag::OfOneBatch));
      return;
    }
    if (is_tagged(loss, LossTag::Scaled)) {
      throw_misuse("the loss was multiplied by the scale already",
                   "pass the loss itself: minimize(loss, scaler) or backward(loss, scaler) multiplies it", "backward");
    }
    if (all_replicas_ == 1) return;  // nothing can be counted twice
    traits.has_mean |= !mean_of_rows_.is_done() && has_mean_of_rows(loss);
    traits.is_share |= is_tagged(loss, LossTag::Unsized) || is_tagged(loss, LossTag::OfOneBatch);
    traits.is_sum |= is_from_all_reduce(loss);
  }

  void agreed(const StepMoment& moment) override {
    if (moment.replica() != 0) return;
    const bool is_sum = moment.op == ReduceOp::Sum;
    // A loss that one replica computes for all counts once.
    if (is_sum && std::ranges::all_of(traits_, &LossTraits::has_mean) && mean_of_rows_.is_first()) {
      say_warning(lockstep::str(
          "the loss is a mean over this replica's rows, and gradients are summed over ", all_replicas_,
          " replicas: the step is ", all_replicas_,
          " times the step of one replica with the whole batch. Compute one loss for each row (reduction None) and give the "
          "optimizer average_loss(losses), as docs/common_mistakes.md shows; or average over replicas: "
          "optimizer.set_reduce_op(ReduceOp::Mean)"));
    }
    // Backward through all_reduce sums the gradients of all replicas, and the optimizer then sums them once more.
    if (is_sum && std::ranges::any_of(traits_, &LossTraits::is_sum) && reduced_loss_.is_first()) {
      say_warning(lockstep::str(
          "the loss given to the optimizer is the result of all_reduce: its gradients already include those of all "
          "replicas, and the step is ",
          all_replicas_,
          " times too large. Give the optimizer this replica's own loss, and all_reduce loss.detach() for the log"));
    }
    if (!is_sum && std::ranges::any_of(traits_, &LossTraits::is_share) && mean_of_shares_.is_first()) {
      say_warning(lockstep::str("average_loss divides by the rows of all replicas, and ReduceOp::Mean by the ",
                                all_replicas_, " replicas once more: the step is ", all_replicas_,
                                " times too small. Leave the reduction at ReduceOp::Sum"));
    }
  }

  void dropped(const StepMoment& moment) override { traits_[static_cast<std::size_t>(moment.replica())] = {}; }

 private:
  /// Each call of a window would be divided by its own rows, so the sum would not be the mean over the window.
  void require_size_of_window(const StepMoment& moment, LossTraits& traits, const at::Tensor& loss) {
    const int window = moment.core.settings.accumulate;
    if (contains_tagged(loss, LossTag::Unsized)) {
      throw_misuse(lockstep::str("average_loss cannot count the examples of a window of set_accumulate(", window, ")"),
                   "give it the number of examples of the whole window, on all replicas: average_loss(losses, size)",
                   "average_loss");
    }
    // A program that divides the loss by `window` passes a different tensor. One batch may be split over several losses
    // of a run, and a window may end after one batch.
    if (!is_tagged(loss, LossTag::OfOneBatch)) return;
    if (run_local<LossesOfBatch>()->count++ > 0 || ++traits.batches < 2) return;
    if (!batch_size_.is_first()) return;
    say_warning(lockstep::str(
        "the size given to average_loss covers one batch, and set_accumulate(", window,
        ") adds up the gradients of several: the step is as many times larger than for their mean. Give it the "
        "number of examples of the whole window, on all replicas"));
  }

  const int all_replicas_;          ///< over all workers
  std::vector<LossTraits> traits_;  ///< per replica
  WarnOnce batch_size_, mean_of_rows_, reduced_loss_, mean_of_shares_;
};

}  // namespace

std::shared_ptr<StepObserver> make_unfit_losses(const OptimizerCore& core) {
  return std::make_shared<UnfitLosses>(core);
}

}  // namespace lockstep::detail
