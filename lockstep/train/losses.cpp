#include "lockstep/train/losses.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/l1_loss.h>
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

}  // namespace

Loss cross_entropy(const CrossEntropyOptions& options) {
  return [smoothing = options.label_smoothing](const at::Tensor& output, const at::Tensor& target) {
    return at::cross_entropy_loss(output, target, {}, at::Reduction::None, -100, smoothing);
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

at::Tensor detail::row_losses(const Loss& loss, const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor losses = loss(output, target);
  if (losses.defined() && losses.dim() > 0 && losses.size(0) == output.size(0))
    return losses.dim() == 1 ? losses : losses.flatten(1).mean(1);
  const std::string got = !losses.defined()   ? "an undefined tensor"
                          : losses.dim() == 0 ? "a single number, a mean or a sum already"
                                              : lockstep::str("a tensor of shape ", losses.sizes());
  throw InvalidArgument(
      errors::kShape,
      {.what = lockstep::str("the loss must return one value for each row, got ", got),
       .where = "the loss of a train::Model",
       .seen = lockstep::str("output of shape ", output.sizes()),
       .help =
           "compute it with reduction None, as ls::train::losses do: the loop divides by the rows of all replicas"});
}

}  // namespace lockstep::train
