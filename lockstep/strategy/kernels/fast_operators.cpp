#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/strategy/autocast_state.h"
#include "lockstep/strategy/intra_op.h"
#include "lockstep/strategy/kernels/convolution_gradient.h"
#include "lockstep/strategy/kernels/matrix_product.h"
#include "lockstep/strategy/kernels/max_pool_gradient.h"
#include "lockstep/strategy/kernels/operators.h"
#include "lockstep/strategy/kernels/replica_kernels.h"
#include "lockstep/strategy/kernels/shared_product.h"
#include "lockstep/values/const_data.h"

// Operators for which Lockstep has faster arithmetic than LibTorch; the table is in replica_kernels.h.
namespace lockstep::kernels {
namespace {

#if defined(__aarch64__)
constexpr bool kArm = true;
#else
constexpr bool kArm = false;
#endif

/// The arguments of `aten::convolution_backward`.
struct Call {
  static constexpr std::size_t kArguments = 11;

  explicit Call(const torch::jit::Stack& stack) {
    const auto argument = [&](std::size_t i) -> const c10::IValue& { return torch::jit::peek(stack, i, kArguments); };
    output_gradient = argument(0).toTensor();
    input = argument(1).toTensor();
    weight = argument(2).toTensor();
    const c10::List<std::int64_t> strides = argument(4).toIntList(), paddings = argument(5).toIntList(),
                                  dilations = argument(6).toIntList();
    transposed = argument(7).toBool();
    groups = argument(9).toInt();
    const c10::List<bool> mask = argument(10).toBoolList();
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = mask.get(i);
    for (const std::int64_t dilation : dilations) dilated = dilated || dilation != 1;
    two_dimensional = strides.size() == 2 && paddings.size() == 2;
    if (!two_dimensional) return;
    stride = {strides.get(0), strides.get(1)};
    padding = {paddings.get(0), paddings.get(1)};
  }

  at::Tensor output_gradient, input, weight;
  std::array<std::int64_t, 2> stride = {1, 1}, padding = {0, 0};
  bool two_dimensional = false, dilated = false, transposed = false;
  std::int64_t groups = 1;
  std::array<bool, 3> wanted = {};  ///< gradients of input, weight, bias
};

bool is_plain(const at::Tensor& tensor) {
  return tensor.dim() == 4 && tensor.is_cpu() && tensor.layout() == at::kStrided &&
         tensor.scalar_type() == at::kFloat && !tensor.is_neg() && !tensor._is_zerotensor() &&
         !tensor._fw_grad(/*level=*/0).defined();  // forward-mode derivatives are LibTorch's
}

/// A larger result leaves the cache between two blocks of positions.
constexpr std::int64_t kLargestWeight = 300'000;

bool is_covered(const Call& call) {
  if (!is_plain(call.output_gradient) || !is_plain(call.input) || !is_plain(call.weight)) return false;
  if (at::GradMode::is_enabled() &&
      (call.output_gradient.requires_grad() || call.input.requires_grad() || call.weight.requires_grad()))
    return false;
  if (call.transposed || call.groups != 1 || call.dilated || !call.two_dimensional) return false;
  return call.output_gradient.numel() > 0 && call.input.numel() > 0 && call.wanted[1] &&
         call.weight.numel() <= kLargestWeight;
}

std::array<std::int64_t, 4> strides_of(const at::Tensor& tensor) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)};
}

/// Each thread sums up a range of images; the ranges' sums are added in order, so that the bits depend on nothing but
/// the number of threads, which is part of a job's identity.
at::Tensor weight_gradient(const Call& call) {
  const ConvolutionShape shape{.images = call.input.size(0),
                               .in_channels = call.input.size(1),
                               .in_height = call.input.size(2),
                               .in_width = call.input.size(3),
                               .out_channels = call.output_gradient.size(1),
                               .out_height = call.output_gradient.size(2),
                               .out_width = call.output_gradient.size(3),
                               .kernel_height = call.weight.size(2),
                               .kernel_width = call.weight.size(3),
                               .stride_height = call.stride[0],
                               .stride_width = call.stride[1],
                               .padding_height = call.padding[0],
                               .padding_width = call.padding[1],
                               .input_strides = strides_of(call.input),
                               .output_gradient_strides = strides_of(call.output_gradient)};
  const float* input = const_data<float>(call.input);
  const float* output_gradient = const_data<float>(call.output_gradient);
  const std::int64_t ranges = std::clamp<std::int64_t>(at::get_num_threads(), 1, shape.images);
  at::Tensor sums =
      at::empty({ranges, call.weight.size(0), call.weight.size(1), call.weight.size(2), call.weight.size(3)},
                call.weight.options());
  float* results = sums.mutable_data_ptr<float>();
  for_ranges(at::empty({ranges}, at::kByte), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      convolution_weight_gradient(shape, input, output_gradient, shape.images * k / ranges,
                                  shape.images * (k + 1) / ranges, results + k * call.weight.numel());
    }
  });
  at::Tensor result = sums.select(0, 0);
  for (std::int64_t k = 1; k < ranges; ++k) result.add_(sums.select(0, k));
  if (ranges > 1) result = result.clone();  // and let go of the ranges' sums
  return result.contiguous(call.weight.suggest_memory_format());
}

/// Only for convolutions that step by one pixel: then it is a convolution again.
bool has_convolution_as_input_gradient(const Call& call) {
  return call.stride[0] == 1 && call.stride[1] == 1 && call.padding[0] < call.weight.size(2) &&
         call.padding[1] < call.weight.size(3);
}

at::Tensor input_gradient(const Call& call) {
  const at::Tensor flipped = call.weight.flip({2, 3}).transpose(0, 1).contiguous(call.weight.suggest_memory_format());
  return at::convolution(
      call.output_gradient, flipped, /*bias=*/{}, /*stride=*/{1, 1},
      /*padding=*/{call.weight.size(2) - 1 - call.padding[0], call.weight.size(3) - 1 - call.padding[1]},
      /*dilation=*/{1, 1}, /*transposed=*/false, /*output_padding=*/{0, 0}, /*groups=*/1);
}

}  // namespace

void convolution_backward(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OwnKernels kernels = own_kernels_here();
  if (kernels != OwnKernels::All && !(kernels == OwnKernels::Faster && kArm)) return pass_on(op, keys, stack);
  const Call call(*stack);
  if (!is_covered(call)) return pass_on(op, keys, stack);

  at::Tensor of_input, of_bias;
  const at::Tensor of_weight = weight_gradient(call);
  const bool own_input = call.wanted[0] && has_convolution_as_input_gradient(call);
  if (own_input) of_input = input_gradient(call);
  if (call.wanted[2]) of_bias = call.output_gradient.sum({0, 2, 3});
  if (call.wanted[0] && !own_input) {
    c10::List<bool> only_input;
    for (const bool wanted : {true, false, false}) only_input.push_back(wanted);
    stack->back() = only_input;
    pass_on(op, keys, stack);
    of_input = torch::jit::peek(*stack, 0, 3).toTensor();
    torch::jit::drop(*stack, 3);
  } else {
    torch::jit::drop(*stack, Call::kArguments);
  }
  torch::jit::push(*stack, of_input, of_weight, of_bias);
}

namespace {

bool is_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.is_cpu() && tensor.layout() == at::kStrided &&
         tensor.scalar_type() == at::kFloat && !tensor.is_neg() && !tensor._is_zerotensor() &&
         !tensor._fw_grad(/*level=*/0).defined();
}

enum class Product {
  LibTorch,
  OneThread,  ///< matrix_product.h
  Shared,     ///< shared_product.h
};

/// What was measured fastest. LibTorch has good kernels for SVE, on Arm for several threads, and on x86_64 for few:
/// every replica packs the weights for itself, which many threads and rows have to pay for.
Product product_for(const at::Tensor& left, const at::Tensor& right) {
  constexpr std::int64_t kLeastRows = 16, kLeastProducts = 1 << 20;
  constexpr std::int64_t kLeastToShare = 1 << 24, kLeastColumnsToShare = 48;
  constexpr int kLeastThreadsToShare = 8;
  const OwnKernels kernels = own_kernels_here();
  if (kernels != OwnKernels::Faster && kernels != OwnKernels::All) return Product::LibTorch;
  if (!is_matrix(left) || !is_matrix(right) || left.size(1) != right.size(0) || detail::is_autocast_on(at::kCPU))
    return Product::LibTorch;
  const std::int64_t products = left.size(0) * left.size(1) * right.size(1);
  if (left.size(0) < kLeastRows || products < kLeastProducts || has_sve()) return Product::LibTorch;

  const int threads = at::get_num_threads();
  if (avx512_tile() != nullptr) {
    const bool faster =
        threads >= kLeastThreadsToShare && products >= kLeastToShare && right.size(1) >= kLeastColumnsToShare;
    return faster || kernels == OwnKernels::All ? Product::Shared : Product::LibTorch;
  }
  return threads == 1 && (kArm || kernels == OwnKernels::All) ? Product::OneThread : Product::LibTorch;
}

bool needs_graph(const at::Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

MatrixView view_of(const at::Tensor& matrix) { return {const_data<float>(matrix), matrix.stride(0), matrix.stride(1)}; }

/// left right, plus `row` in every row if there is one.
at::Tensor own_product(Product by, const at::Tensor& left, const at::Tensor& right, const at::Tensor& row = {}) {
  at::Tensor result = at::empty({left.size(0), right.size(1)}, left.options().requires_grad(false));
  float* const c = result.mutable_data_ptr<float>();
  const ProductSizes sizes{.rows = left.size(0), .inner = left.size(1), .columns = right.size(1)};
  if (by == Product::OneThread) {
    if (row.defined()) result.copy_(row.expand_as(result));
    matrix_product(sizes.rows, sizes.inner, sizes.columns, view_of(left), view_of(right), c, result.stride(0),
                   /*accumulate=*/row.defined());
    return result;
  }
  const ProductTile& tile = *avx512_tile();
  at::Tensor scratch = at::empty({shared_product_scratch(tile, sizes)}, at::kFloat);
  const at::Tensor members = at::empty({at::get_num_threads()}, at::kByte);
  const auto on_threads = [&](FunctionRef<void(int)> work) {
    for_ranges(members, /*grain=*/1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t member = begin; member < end; ++member) work(static_cast<int>(member));
    });
  };
  const at::Tensor start = row.defined() ? row.contiguous() : row;
  shared_product(tile, sizes, view_of(left), view_of(right), row.defined() ? const_data<float>(start) : nullptr, c,
                 result.stride(0), scratch.mutable_data_ptr<float>(),
                 {.size = static_cast<int>(members.numel()), .run = on_threads});
  return result;
}

/// The gradients of `bias + input weight`; they come back to `mm`. A node of its own, since the containers inside
/// `torch::autograd::Function` make g++ 13 warn at -O3.
struct AffineBackward : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& slopes) override {
    torch::autograd::variable_list gradients(3);
    const at::Tensor& slope = slopes.at(0);
    if (!slope.defined()) return gradients;
    const std::lock_guard lock(mutex_);
    if (task_should_compute_output(0)) gradients[0] = slope.sum(0);
    if (task_should_compute_output(1)) gradients[1] = slope.mm(weight.unpack(shared_from_this()).t());
    // A linear layer's `weight` is the transpose of its parameter: this way the parameter's gradient lies as it does.
    if (task_should_compute_output(2)) gradients[2] = slope.t().mm(input.unpack(shared_from_this())).t();
    return gradients;
  }
  std::string name() const override { return "AffineBackward"; }
  void release_variables() override {
    const std::lock_guard lock(mutex_);
    input.reset_data();
    weight.reset_data();
  }

  torch::autograd::SavedVariable input, weight;
};

at::Tensor affine_map(Product by, const at::Tensor& bias, const at::Tensor& input, const at::Tensor& weight) {
  const std::shared_ptr<AffineBackward> node(new AffineBackward(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(bias, input, weight));
  // As LibTorch does: what no gradient needs may change, and is not kept.
  if (weight.requires_grad()) node->input = torch::autograd::SavedVariable(input, /*is_output=*/false);
  if (input.requires_grad()) node->weight = torch::autograd::SavedVariable(weight, /*is_output=*/false);
  at::Tensor result;
  {
    const at::NoGradGuard no_graph;
    result = own_product(by, input, weight, bias);
  }
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace

void mm(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const at::Tensor left = torch::jit::peek(*stack, 0, 2).toTensor(), right = torch::jit::peek(*stack, 1, 2).toTensor();
  const Product by = product_for(left, right);
  if (by == Product::LibTorch || needs_graph(left) || needs_graph(right)) return pass_on(op, keys, stack);
  torch::jit::drop(*stack, 2);
  torch::jit::push(*stack, own_product(by, left, right));
}

void addmm(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  constexpr std::size_t kArguments = 5;  // self, mat1, mat2, beta, alpha
  const auto argument = [&](std::size_t i) -> const c10::IValue& { return torch::jit::peek(*stack, i, kArguments); };
  const at::Tensor bias = argument(0).toTensor(), left = argument(1).toTensor(), right = argument(2).toTensor();
  const Product by = product_for(left, right);
  const bool covered = by != Product::LibTorch && argument(3).toScalar().equal(1) && argument(4).toScalar().equal(1) &&
                       bias.dim() == 1 && bias.size(0) == right.size(1) && bias.scalar_type() == at::kFloat &&
                       bias.is_cpu() && !bias.is_neg() && !bias._is_zerotensor() &&
                       !bias._fw_grad(/*level=*/0).defined();
  if (!covered) return pass_on(op, keys, stack);
  torch::jit::drop(*stack, kArguments);
  const bool graph = needs_graph(bias) || needs_graph(left) || needs_graph(right);
  torch::jit::push(*stack, graph ? affine_map(by, bias, left, right) : own_product(by, left, right, bias));
}

namespace {

/// Channels-last and not contiguous as well: LibTorch takes a tensor that is both for the latter.
bool is_channels_last(const at::Tensor& tensor) {
  return is_plain(tensor) && tensor.is_contiguous(at::MemoryFormat::ChannelsLast) && !tensor.is_contiguous();
}

}  // namespace

void max_pool2d_with_indices_backward(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                      torch::jit::Stack* stack) {
  constexpr std::size_t kArguments =
      8;  // output gradient, input, kernel_size, stride, padding, dilation, ceil_mode, indices
  const at::Tensor slopes = torch::jit::peek(*stack, 0, kArguments).toTensor(),
                   input = torch::jit::peek(*stack, 1, kArguments).toTensor(),
                   winners = torch::jit::peek(*stack, 7, kArguments).toTensor();
  const bool covered = own_kernels_here() != OwnKernels::None && is_channels_last(input) && is_plain(slopes) &&
                       winners.scalar_type() == at::kLong && slopes.sizes() == winners.sizes() &&
                       slopes.size(0) == input.size(0) && slopes.size(1) == input.size(1) && !needs_graph(slopes);
  if (!covered) return pass_on(op, keys, stack);

  const at::Tensor from = slopes.contiguous(at::MemoryFormat::ChannelsLast),
                   to = winners.contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor result = at::empty_like(input, at::MemoryFormat::ChannelsLast);
  const PooledImages shape{.channels = input.size(1),
                           .pixels = input.size(2) * input.size(3),
                           .pooled_pixels = slopes.size(2) * slopes.size(3)};
  float* const data = result.mutable_data_ptr<float>();
  for_ranges(at::empty({input.size(0)}, at::kByte), /*grain=*/1, [&](std::int64_t first, std::int64_t last) {
    max_pool_input_gradient(shape, const_data<float>(from), const_data<std::int64_t>(to), first, last, data);
  });
  torch::jit::drop(*stack, kArguments);
  torch::jit::push(*stack, result);
}

}  // namespace lockstep::kernels
