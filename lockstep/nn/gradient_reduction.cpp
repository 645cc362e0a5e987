#include "lockstep/nn/gradient_reduction.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/ordered_sum.h"
#include "lockstep/strategy/intra_op.h"
#include "lockstep/strategy/tensor_reduction.h"

namespace lockstep {
namespace {

// Stands for the gradient of a replica that has none.
alignas(64) constexpr std::array<unsigned char, kShardBlock * 8> kZeros{};

const char* data_of(const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); }

at::Tensor flat(const at::Tensor& gradient) { return gradient.as_strided({gradient.numel()}, {1}); }

}  // namespace

at::Tensor in_parameter_order(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (gradient.is_sparse() || (gradient.strides() == parameter.strides() && gradient.is_non_overlapping_and_dense()))
    return gradient;
  at::Tensor ordered = at::empty_like(parameter, parameter.options().requires_grad(false));
  return ordered.copy_(gradient);
}

GradientKind GradientReduction::kind_of(std::size_t parameter, const std::string& name) const {
  auto kind = GradientKind::None;
  for (std::size_t k = 0; k < views_.size(); ++k) {
    const at::Tensor& gradient = views_[k]->gradients[parameter];
    if (!gradient.defined()) continue;
    const auto this_kind = gradient.is_sparse() ? GradientKind::Sparse : GradientKind::Dense;
    if (kind != GradientKind::None && kind != this_kind) {
      throw InvalidArgument(
          errors::kOptimizer,
          {.what = lockstep::str("'", name, "' has a sparse gradient on one replica and a dense one on another"),
           .seen = lockstep::str("on replica ", k, " it is ", this_kind == GradientKind::Sparse ? "sparse" : "dense"),
           .help = "use the parameter in the same way on every replica"});
    }
    kind = this_kind;
  }
  return kind;
}

void GradientReduction::reduce(const Segment& segment, at::Tensor& owners_gradient) const {
  const auto dtype = engine_dtype(owners_gradient.scalar_type());
  const auto parameter = static_cast<std::size_t>(segment.parameter);
  if (!dtype || !owners_gradient.is_cpu()) {
    std::vector<at::Tensor> parts;
    for (const auto* view : views_) {
      const at::Tensor& gradient = view->gradients[parameter];
      parts.push_back(
          gradient.defined()
              ? flat(gradient).slice(0, segment.begin, segment.end)
              : flat(owners_gradient).slice(0, segment.begin, segment.end).new_zeros({segment.end - segment.begin}));
    }
    flat(owners_gradient).slice(0, segment.begin, segment.end).copy_(ordered_reduce(op_, parts));
    return;
  }
  const auto width = static_cast<std::int64_t>(size_of(*dtype));
  bool complete = true;
  for (const auto* view : views_) complete &= view->gradients[parameter].defined();
  auto* const target = static_cast<char*>(owners_gradient.data_ptr());
  const auto sum = [&](std::int64_t begin, std::int64_t end) {
    c10::SmallVector<const void*, 16> inputs(views_.size());
    for (std::size_t k = 0; k < views_.size(); ++k) {
      const at::Tensor& gradient = views_[k]->gradients[parameter];
      inputs[k] = gradient.defined() ? data_of(gradient) + begin * width : reinterpret_cast<const char*>(kZeros.data());
    }
    void* output = target + begin * width;
    ordered_sum(*dtype, inputs.data(), static_cast<int>(inputs.size()), &output, 1,
                static_cast<std::size_t>(end - begin), divisor());
  };
  for_ranges(flat(owners_gradient).slice(0, segment.begin, segment.end), kElementwiseGrain,
             [&](std::int64_t first, std::int64_t last) {
               const std::int64_t end = segment.begin + last;
               const std::int64_t stride = complete ? last - first : kShardBlock;
               for (std::int64_t begin = segment.begin + first; begin < end; begin += stride)
                 sum(begin, std::min(begin + stride, end));
             });
}

std::vector<const float*> GradientReduction::parts(const Segment& segment) const {
  std::vector<const float*> all;
  for (const auto* view : views_) {
    const at::Tensor& gradient = view->gradients[static_cast<std::size_t>(segment.parameter)];
    if (!gradient.defined() || gradient.is_sparse() || !gradient.is_cpu() || gradient.scalar_type() != at::kFloat)
      return {};
    all.push_back(gradient.const_data_ptr<float>() + segment.begin);
  }
  return all;
}

at::Tensor GradientReduction::reduce_sparse(std::size_t parameter) const {
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;
  at::Tensor like;
  for (const auto* view : views_) {
    const at::Tensor& gradient = view->gradients[parameter];
    if (!gradient.defined()) continue;
    like = gradient;
    indices.push_back(gradient._indices());
    values.push_back(gradient._values());
  }
  at::Tensor all_values = at::cat(values);
  if (op_ == ReduceOp::Mean) all_values = divide_sum(all_values, divisor());
  return at::sparse_coo_tensor(at::cat(indices, 1), all_values, like.sizes(), like.options()).coalesce();
}

int GradientReduction::first_not_finite(const Segment& segment, int except_owner) const {
  for (std::size_t k = 0; k < views_.size(); ++k) {
    const at::Tensor& gradient = views_[k]->gradients[static_cast<std::size_t>(segment.parameter)];
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {  // summed elsewhere: the owner's own is still what it was
      if (!gradient._values().isfinite().all().item<bool>()) return static_cast<int>(k);
      continue;
    }
    if (static_cast<int>(k) == except_owner) continue;
    if (!flat(gradient).slice(0, segment.begin, segment.end).isfinite().all().item<bool>()) return static_cast<int>(k);
  }
  return -1;
}

}  // namespace lockstep
