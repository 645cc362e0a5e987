#include "lockstep/nn/step/gradient_reducer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include "lockstep/nn/optimizer_core.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tensor_reduction.h"

namespace lockstep::detail {

at::Device GradientReducer::device_of(std::size_t k) const {
  return module_.strategy().replica_context(static_cast<int>(k)).device();
}

at::Device GradientReducer::device_of(const ReplicaPart& mine) const {
  return device_of(static_cast<std::size_t>(mine.index));
}

at::Tensor GradientReducer::sum_of_rows(const std::vector<at::Tensor>& indices, const std::vector<at::Tensor>& values,
                                        const at::Tensor& leaf, std::int64_t divisor) {
  at::Tensor all_values = at::cat(values);
  if (divisor != 1) all_values = divide_sum(all_values, divisor);
  const auto options = leaf.options().requires_grad(false).layout(at::kSparse);
  return at::sparse_coo_tensor(at::cat(indices, 1), all_values, leaf.sizes(), options).coalesce();
}

bool is_finite(const at::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

int GradientReducer::not_finite_here(const OwnedSegment& segment, int skipped) const {
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    const at::Tensor& gradient = replicas_[k]->shown.gradients[static_cast<std::size_t>(segment.where.parameter)];
    if (!gradient.defined() || static_cast<int>(k) == skipped) continue;
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : slice_of(gradient, segment.where);
    if (!is_finite(gpu::bring_here(values, segment.sum.device()))) return static_cast<int>(k);
  }
  return -1;
}

}  // namespace lockstep::detail
