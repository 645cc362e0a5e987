#include "lockstep/strategy/kernels/operators.h"

// Some of LibTorch's convolutions on Arm corrupt memory when two threads use them at once: those of bfloat16, and of
// float32 with certain numbers of output channels (seen with 2.9.1, from Python and plain threads too). Layers of an LSTM
// in bfloat16 give wrong results then. Several replicas compute what is in bfloat16 in float32 and round the result,
// gradients included, and compute other unsafe convolutions another way.
#if defined(__aarch64__)

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/slow_conv_dilated2d.h>
#include <ATen/ops/thnn_conv2d.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "lockstep/strategy/kernels/replica_kernels.h"
#include "lockstep/strategy/replica_context.h"

namespace lockstep::kernels {
namespace {

/// The arguments of `aten::convolution`.
struct Convolution {
  static constexpr std::size_t kArguments = 9;

  explicit Convolution(const torch::jit::Stack& stack) {
    const auto argument = [&](std::size_t i) -> const c10::IValue& { return torch::jit::peek(stack, i, kArguments); };
    input = argument(0).toTensor();
    weight = argument(1).toTensor();
    if (argument(2).isTensor()) bias = argument(2).toTensor();
    stride = per_dimension(argument(3));
    padding = per_dimension(argument(4));
    dilation = per_dimension(argument(5));
    transposed = argument(6).toBool();
    output_padding = per_dimension(argument(7));
    groups = argument(8).toInt();
  }

  /// One number may stand for all dimensions of an image.
  std::vector<std::int64_t> per_dimension(const c10::IValue& numbers) const {
    auto values = numbers.toIntVector();
    if (values.size() == 1 && input.dim() > 3) values.resize(static_cast<std::size_t>(input.dim() - 2), values[0]);
    return values;
  }

  at::Tensor input, weight, bias;
  std::vector<std::int64_t> stride, padding, dilation, output_padding;
  bool transposed = false;
  std::int64_t groups = 1;
};

/// Wrong arguments are LibTorch's to refuse.
bool is_valid(const Convolution& call) {
  const auto dimensions = static_cast<std::size_t>(call.input.dim() - 2);
  if (call.weight.dim() != call.input.dim() || call.weight.size(1) != call.input.size(1) || call.weight.numel() == 0 ||
      call.weight.scalar_type() != at::kFloat || call.stride.size() != dimensions ||
      call.padding.size() != dimensions || call.dilation.size() != dimensions ||
      (call.bias.defined() &&
       (call.bias.dim() != 1 || call.bias.size(0) != call.weight.size(0) || call.bias.scalar_type() != at::kFloat)))
    return false;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const auto side = static_cast<std::int64_t>(d) + 2;
    const std::int64_t reach = call.dilation[d] * (call.weight.size(side) - 1) + 1;
    if (call.stride[d] < 1 || call.padding[d] < 0 || call.dilation[d] < 1 ||
        call.input.size(side) + 2 * call.padding[d] < reach)
      return false;
  }
  return true;
}

/// Those that LibTorch gives to the Arm Compute Library, in which threads share the working memory of some matrix
/// kernels: results are wrong and the heap is corrupted, depending on shapes (seen with 2.9.1, from plain threads too).
/// The kernel that is chosen for multiples of 16 output channels without SVE has no such memory. A transposed
/// convolution is safe itself, but its input's gradient is a convolution with as many output channels as the input has.
/// All other convolutions were tried and are safe.
bool is_unsafe(const Convolution& call) {
  const auto is_plain = [](const at::Tensor& tensor) {  // forward-mode derivatives and other layouts are LibTorch's
    return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor._fw_grad(/*level=*/0).defined();
  };
  return is_plain(call.input) && is_plain(call.weight) && call.input.scalar_type() == at::kFloat &&
         (call.input.dim() == 3 || call.input.dim() == 4) && call.groups == 1 && call.input.numel() > 0 &&
         (has_sve() || call.weight.size(0) % 16 != 0) &&
         (call.transposed ? at::GradMode::is_enabled() && call.input.requires_grad() : is_valid(call));
}

/// The same convolution by LibTorch's other way: patches of images as the rows of a matrix product.
struct SafeConvolution : torch::autograd::Function<SafeConvolution> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation) {
    context->save_for_backward({input, weight});
    context->saved_data["bias"] = bias.has_value();
    context->saved_data["stride"] = stride.vec();
    context->saved_data["padding"] = padding.vec();
    context->saved_data["dilation"] = dilation.vec();
    // LibTorch makes the matrix of all images at once.
    constexpr std::int64_t kMostPatchElements = 1 << 23;
    const at::IntArrayRef kernel = weight.sizes().slice(2);
    std::int64_t per_image = weight.numel() / weight.size(0);
    for (std::size_t d = 0; d < 2; ++d) {
      const auto side = static_cast<std::int64_t>(d) + 2;
      per_image *= (input.size(side) + 2 * padding[d] - dilation[d] * (weight.size(side) - 1) - 1) / stride[d] + 1;
    }
    const std::int64_t images = std::max<std::int64_t>(1, kMostPatchElements / std::max<std::int64_t>(1, per_image));
    const bool dilated = std::any_of(dilation.begin(), dilation.end(), [](std::int64_t d) { return d != 1; });
    std::vector<at::Tensor> parts;
    for (std::int64_t first = 0; first < input.size(0); first += images) {
      const at::Tensor some = input.narrow(0, first, std::min(images, input.size(0) - first));
      parts.push_back(dilated ? at::slow_conv_dilated2d(some, weight, kernel, bias, stride, padding, dilation)
                              : at::thnn_conv2d(some, weight, kernel, bias, stride, padding));
    }
    return parts.size() == 1 ? parts[0] : at::cat(parts);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& slopes) {
    const auto saved = context->get_saved_variables();
    const std::vector<std::int64_t> bias_sizes = {saved[1].size(0)};
    const bool with_bias = context->saved_data["bias"].toBool();
    auto [of_input, of_weight, of_bias] = at::convolution_backward(
        slopes[0], saved[0], saved[1], with_bias ? at::OptionalIntArrayRef(bias_sizes) : at::OptionalIntArrayRef(),
        context->saved_data["stride"].toIntVector(), context->saved_data["padding"].toIntVector(),
        context->saved_data["dilation"].toIntVector(), /*transposed=*/false, /*output_padding=*/{0, 0}, /*groups=*/1,
        {context->needs_input_grad(0), context->needs_input_grad(1), with_bias && context->needs_input_grad(2)});
    return {of_input, of_weight, of_bias, {}, {}, {}};
  }
};

/// LibTorch's transposed convolution, with the input's gradient as a convolution that comes by here.
struct SafeTransposedConvolution : torch::autograd::Function<SafeTransposedConvolution> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation, at::IntArrayRef output_padding) {
    context->save_for_backward({input, weight});
    context->saved_data["bias"] = bias.has_value();
    context->saved_data["stride"] = stride.vec();
    context->saved_data["padding"] = padding.vec();
    context->saved_data["dilation"] = dilation.vec();
    context->saved_data["output_padding"] = output_padding.vec();
    const c10::impl::ExcludeDispatchKeyGuard libtorchs_own(kReplicaDispatchKey);
    return at::convolution(input, weight, bias, stride, padding, dilation, /*transposed=*/true, output_padding,
                           /*groups=*/1);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& slopes) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    const auto stride = context->saved_data["stride"].toIntVector();
    const auto padding = context->saved_data["padding"].toIntVector();
    const auto dilation = context->saved_data["dilation"].toIntVector();
    const auto output_padding = context->saved_data["output_padding"].toIntVector();
    const bool with_bias = context->saved_data["bias"].toBool();
    at::Tensor of_input;
    if (context->needs_input_grad(0)) {
      of_input = at::convolution(slopes[0], weight, {}, stride, padding, dilation, /*transposed=*/false,
                                 std::vector<std::int64_t>(stride.size(), 0), /*groups=*/1);
      // What output_padding has added may reach further than the input.
      for (std::int64_t d = 2; d < input.dim(); ++d) of_input = of_input.narrow(d, 0, input.size(d));
    }
    const std::vector<std::int64_t> bias_sizes = {weight.size(1)};
    auto [none, of_weight, of_bias] = at::convolution_backward(
        slopes[0], input, weight, with_bias ? at::OptionalIntArrayRef(bias_sizes) : at::OptionalIntArrayRef(), stride,
        padding, dilation, /*transposed=*/true, output_padding, /*groups=*/1,
        {false, context->needs_input_grad(1), with_bias && context->needs_input_grad(2)});
    return {of_input, of_weight, of_bias, {}, {}, {}, {}};
  }
};

at::Tensor safe_convolution(const Convolution& call) {
  const auto bias = call.bias.defined() ? std::optional(call.bias) : std::nullopt;
  if (call.transposed) {
    return SafeTransposedConvolution::apply(call.input, call.weight, bias, call.stride, call.padding, call.dilation,
                                            call.output_padding);
  }
  if (call.input.dim() == 4)
    return SafeConvolution::apply(call.input, call.weight, bias, call.stride, call.padding, call.dilation);
  return SafeConvolution::apply(
             call.input.unsqueeze(2), call.weight.unsqueeze(2), bias, std::vector<std::int64_t>{1, call.stride[0]},
             std::vector<std::int64_t>{0, call.padding[0]}, std::vector<std::int64_t>{1, call.dilation[0]})
      .squeeze(2);
}

bool among_several_replicas() { return in_replica_context() && get_replica_context().num_replicas_in_sync() > 1; }

bool is_brain_float(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().is_cpu() && value.toTensor().scalar_type() == at::kBFloat16;
}

/// The first `count` of the uppermost `of` values, where they are tensors of another type.
void convert(torch::jit::Stack& stack, std::size_t count, std::size_t of, at::ScalarType type) {
  for (std::size_t i = 0; i < count; ++i) {
    c10::IValue& value = torch::jit::peek(stack, i, of);
    if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().to(type);
  }
}

}  // namespace

void convolution(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!among_several_replicas()) return pass_on(op, keys, stack);
  const bool brain_float = is_brain_float(torch::jit::peek(*stack, 0, Convolution::kArguments));
  if (brain_float) convert(*stack, /*input, weight, bias*/ 3, Convolution::kArguments, at::kFloat);
  if (const Convolution call(*stack); is_unsafe(call)) {
    torch::jit::drop(*stack, Convolution::kArguments);
    torch::jit::push(*stack, safe_convolution(call));
  } else {
    pass_on(op, keys, stack);
  }
  if (brain_float) convert(*stack, 1, 1, at::kBFloat16);
}

/// A layer of an LSTM.
void mkldnn_rnn_layer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  // An autocast that is still to come would only cast back, and comes by here again.
  if (!among_several_replicas() || keys.has(c10::DispatchKey::AutocastCPU)) return pass_on(op, keys, stack);
  const std::size_t arguments = op.schema().arguments().size();
  const bool brain_float = is_brain_float(torch::jit::peek(*stack, 0, arguments));
  if (brain_float) convert(*stack, /*input, four weights, both states*/ 7, arguments, at::kFloat);
  pass_on(op, keys, stack);
  if (brain_float) convert(*stack, /*output, both states; then comes working memory*/ 3, 4, at::kBFloat16);
}

}  // namespace lockstep::kernels

#endif
