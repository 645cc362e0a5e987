#include "lockstep/train/losses.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/mse_loss.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::train {
namespace losses {
namespace {

void require_one_shape(const char* loss, const at::Tensor& output, const at::Tensor& target) {
  if (output.sizes() == target.sizes()) return;
  throw InvalidArgument(errors::kShape,
                        {.what = lockstep::str(loss, " needs an output and a target of the same shape, got ",
                                               output.sizes(), " and ", target.sizes()),
                         .where = lockstep::str("losses::", loss),
                         .help = "reshape one of them, such as output.squeeze(1) in the model's forward: broadcasting "
                                 "would compare every row with every other"});
}

/// Class numbers [rows, ...], or probabilities of the output's shape.
void require_classes_or_probabilities(const at::Tensor& output, const at::Tensor& target) {
  const bool is_probability = target.is_floating_point() && output.sizes() == target.sizes();
  const bool are_integers = target.scalar_type() == at::kLong || target.scalar_type() == at::kByte;
  if (is_probability || (are_integers && output.dim() >= 2 && target.dim() == output.dim() - 1)) return;
  throw InvalidArgument(
      errors::kShape,
      {.what = "cross_entropy needs scores [rows, classes, ...] and class numbers [rows, ...] as int64",
       .where = "losses::cross_entropy",
       .seen =
           lockstep::str("output of shape ", output.sizes(), ", target of ", target.scalar_type(), " ", target.sizes()),
       .help = "convert the labels once, before the dataset is made: labels.to(torch::kLong), with squeeze(1) for a "
               "column; for yes and no with one score, use binary_cross_entropy, and for numbers mse"});
}

/// On a CPU LibTorch throws if a class number is too large; a GPU cannot.
at::Tensor cross_entropy_of(const at::Tensor& output, const at::Tensor& target, double smoothing) {
  require_classes_or_probabilities(output, target);
  try {
    return at::cross_entropy_loss(output, target, {}, at::Reduction::None, -100, smoothing);
  } catch (const c10::IndexError&) {
    throw InvalidArgument(errors::kShape,
                          {.what = lockstep::str("class numbers must be from 0 to ", output.size(1) - 1,
                                                 ", because the model returns ", output.size(1), " scores"),
                           .where = "losses::cross_entropy",
                           .seen = lockstep::str("targets from ", target.min().item<std::int64_t>(), " to ",
                                                 target.max().item<std::int64_t>()),
                           .help = "give the model's last layer an output for each class, and count classes from 0"});
  }
}

}  // namespace

Loss cross_entropy(const CrossEntropyOptions& options) {
  return [smoothing = options.label_smoothing](const at::Tensor& output, const at::Tensor& target) {
    return cross_entropy_of(output, target, smoothing);
  };
}

Loss binary_cross_entropy() {
  return [](const at::Tensor& output, const at::Tensor& target) {
    require_one_shape("binary_cross_entropy", output, target);
    return at::binary_cross_entropy_with_logits(output, target.to(output.scalar_type()), {}, {}, at::Reduction::None);
  };
}

Loss mse() {
  return [](const at::Tensor& output, const at::Tensor& target) {
    require_one_shape("mse", output, target);
    return at::mse_loss(output, target, at::Reduction::None);
  };
}

Loss mae() {
  return [](const at::Tensor& output, const at::Tensor& target) {
    require_one_shape("mae", output, target);
    return at::l1_loss(output, target, at::Reduction::None);
  };
}

}  // namespace losses

at::Tensor Loss::operator()(const at::Tensor& output, const at::Tensor& target) const {
  const detail::AnyRef both[] = {detail::AnyRef(output), detail::AnyRef(target)};
  if (f_.takes(both)) return f_(both);
  throw InvalidArgument(errors::kStructure,
                        {.what = lockstep::str("the loss takes ", detail::names_of_types(f_.types()),
                                               ", and was called with two tensors"),
                         .where = "train::Loss",
                         .help = "call it with values of its own types"});
}

at::Tensor Loss::operator()(const detail::Prediction& prediction) const {
  const detail::AnyRef &output = prediction.output, &batch = prediction.batch.whole;
  const detail::AnyRef& target = prediction.target != nullptr ? *prediction.target : batch;
  const bool is_tensor_alone = prediction.target == nullptr && batch.is<at::Tensor>();
  if (!is_tensor_alone) {
    if (auto losses = f_.call_with_first({{output, target}, {output, batch}})) return *std::move(losses);
  }
  if (is_tensor_alone || (prediction.target == nullptr && prediction.batch.fields.size() == 1)) {
    throw InvalidArgument(
        errors::kStructure,
        {.what = "a batch must have an input and a target for the default training step",
         .where = "train::Model",
         .seen = lockstep::str("a batch that is one ", lockstep::type_name(prediction.batch.whole.type())),
         .help = "map the dataset to pairs of input and target, for an autoencoder of the input twice; or give "
                 "model.set_train_step a step of your own"});
  }
  throw InvalidArgument(
      errors::kStructure,
      {.what =
           lockstep::str("the loss takes ", detail::names_of_types(f_.types()), ", and must take the output and the ",
                         prediction.target != nullptr ? "target, or the output and the batch" : "batch"),
       .where = "the loss of a train::Model",
       .seen = types_of(prediction),
       .help =
           lockstep::str("give the model .loss = [](const ", lockstep::type_name(prediction.output.type()),
                         "& output, const ", lockstep::type_name(prediction.batch.whole.type()), "& mine) { ... }")});
}

at::Tensor detail::row_losses(const Loss& loss, const Prediction& prediction) {
  const at::Tensor losses = loss(prediction);
  const bool is_tensor = prediction.output.is<at::Tensor>() && prediction.output.as<at::Tensor>().dim() > 0;
  const std::int64_t rows = is_tensor ? prediction.output.as<at::Tensor>().size(0) : prediction.batch.rows;
  if (losses.defined() && losses.dim() > 0 && losses.size(0) == rows)
    return losses.dim() == 1 ? losses : losses.flatten(1).mean(1);
  const std::string got = !losses.defined()   ? "an undefined tensor"
                          : losses.dim() == 0 ? "a single number, a mean or a sum already"
                                              : lockstep::str("a tensor of shape ", losses.sizes());
  throw InvalidArgument(
      errors::kShape,
      {.what = lockstep::str("the loss must return one value for each row, got ", got),
       .where = "the loss of a train::Model",
       .seen = is_tensor ? lockstep::str("output of shape ", prediction.output.as<at::Tensor>().sizes())
                         : lockstep::str("a batch of ", counted(rows, "row")),
       .help =
           "compute it with reduction None, as ls::train::losses do: the loop divides by the rows of all replicas"});
}

}  // namespace lockstep::train
