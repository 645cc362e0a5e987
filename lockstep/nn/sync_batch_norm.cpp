#include "lockstep/nn/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/kernels/dispatch.h"

namespace lockstep::nn {
namespace {

/// Broadcasts along the channels, for a tensor of any rank.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.reshape(shape);
}

/// Layers that `convert_sync_batch_norm` was called for, identified by one of their tensors.
class ConvertedLayers {
 public:
  void add(const at::Tensor& tensor, const std::shared_ptr<torch::nn::Module>& layer) {
    const std::unique_lock lock(mutex_);
    std::erase_if(layers_, [](const auto& entry) { return entry.second.tensor.expired(); });
    layers_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                             Layer{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), layer});
  }
  /// Whether the tensor belongs to a converted layer that is training: a layer without running statistics uses its
  /// batch's even if it is not.
  bool is_training(const c10::IValue& tensor) const {
    if (!tensor.isTensor() || !tensor.toTensor().defined()) return false;
    const std::shared_lock lock(mutex_);
    const auto found = layers_.find(tensor.toTensor().unsafeGetTensorImpl());
    if (found == layers_.end() || found->second.tensor.expired()) return false;
    const auto layer = found->second.module.lock();
    return layer != nullptr && layer->is_training();
  }

 private:
  struct Layer {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    std::weak_ptr<torch::nn::Module> module;
  };
  mutable std::shared_mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Layer> layers_;
};

ConvertedLayers& converted() {
  static auto& layers = *new ConvertedLayers;
  return layers;
}

at::Tensor tensor_or_none(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

/// Overrides `aten::batch_norm` on replica threads: a user's layer calls that, and C++ cannot change the layer's type.
void batch_norm_of_replicas(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  constexpr std::size_t kArguments =
      9;  // input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn
  const auto argument = [&](std::size_t i) -> const c10::IValue& { return torch::jit::peek(*stack, i, kArguments); };
  const bool together = argument(5).toBool() && has_strategy() && in_replica_context() &&
                        get_replica_context().num_replicas_in_sync() > 1 &&
                        (converted().is_training(argument(1)) || converted().is_training(argument(3)));
  if (!together) return kernels::pass_on(op, keys, stack);
  at::Tensor result = detail::sync_batch_norm(
      {argument(0).toTensor(), tensor_or_none(argument(1)), tensor_or_none(argument(2)), tensor_or_none(argument(3)),
       tensor_or_none(argument(4)), argument(6).toDouble(), argument(7).toDouble()});
  torch::jit::drop(*stack, kArguments);
  torch::jit::push(*stack, std::move(result));
}

void register_kernel() {
  static std::once_flag once;
  std::call_once(once, [] { kernels::put_before_libtorch<&batch_norm_of_replicas>("batch_norm"); });
}

template <class Layer>
bool convert(const std::shared_ptr<torch::nn::Module>& module) {
  auto* layer = module->as<Layer>();
  if (layer == nullptr) return false;
  const at::Tensor& known_by = layer->weight.defined() ? layer->weight : layer->running_mean;
  if (!known_by.defined()) {
    throw Unimplemented(
        errors::kWrongModule,
        {.what = "a batch-norm layer without weights and without running statistics cannot be converted",
         .help = "use lockstep::nn::SyncBatchNorm in its place"});
  }
  converted().add(known_by, module);
  return true;
}

}  // namespace

namespace detail {

at::Tensor sync_batch_norm(const BatchNormInput& layer) {
  // Half precision is for values; sums and counts of a whole batch need more.
  const bool half = layer.input.scalar_type() == at::kHalf || layer.input.scalar_type() == at::kBFloat16;
  const at::Tensor x = half ? layer.input.to(at::kFloat) : layer.input;
  auto& replica = get_replica_context();
  std::vector<std::int64_t> dims;
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    if (d != 1) dims.push_back(d);
  }
  const std::int64_t channels = x.size(1);
  const double count = channels == 0 ? 0.0 : static_cast<double>(x.numel()) / static_cast<double>(channels);
  // Two passes, as in textbooks: sums of squared differences avoid the cancellation in differences of squares.
  at::Tensor sums;
  double total = 0;
  if (x.is_cpu() || lockstep::detail::StrategyAccess::device_kinds(replica.strategy()) == DeviceKinds::Mixed) {
    sums = replica.all_reduce(ReduceOp::Sum, at::cat({x.sum(dims), at::full({1}, count, x.options())}));
    total = sums.select(0, channels).item<double>();
  } else {  // the threads can exchange these without waiting for the GPU
    sums = replica.all_reduce(ReduceOp::Sum, x.sum(dims));
    total = replica.all_reduce(ReduceOp::Sum, at::full({}, count, at::kDouble)).item<double>();
  }
  if (total <= 1.0) {
    throw InvalidArgument(errors::kShape, {.what = "Expected more than 1 value per channel when training",
                                           .where = "sync_batch_norm",
                                           .seen = lockstep::str(total, " values per channel over all replicas"),
                                           .help = "give the replicas more rows together, or call model.eval()"});
  }
  const at::Tensor mean = sums.narrow(0, 0, channels).div(total);
  const at::Tensor centered = x.sub(per_channel(mean, x));
  const at::Tensor variance = replica.all_reduce(ReduceOp::Sum, centered.square().sum(dims)).div(total);
  at::Tensor y = centered.mul(per_channel(variance.add(layer.eps).rsqrt(), x));
  if (layer.weight.defined()) y = y.mul(per_channel(layer.weight, x));
  if (layer.bias.defined()) y = y.add(per_channel(layer.bias, x));
  if (layer.running_mean.defined() && layer.running_var.defined()) {
    const at::NoGradGuard no_grad;
    at::Tensor(layer.running_mean).mul_(1.0 - layer.momentum).add_(mean.detach(), layer.momentum);
    at::Tensor(layer.running_var)
        .mul_(1.0 - layer.momentum)
        .add_(variance.detach().mul(total / (total - 1.0)), layer.momentum);
  }
  return half ? y.to(layer.input.scalar_type()) : y;
}

}  // namespace detail

int convert_sync_batch_norm(lockstep::detail::ModuleCore& model) {
  register_kernel();
  int layers = 0;
  for (std::size_t k = 0; k < model.size(); ++k) {
    int here = 0;
    for (const auto& module : model.replica(k)->modules()) {
      here += convert<torch::nn::BatchNorm1dImpl>(module) || convert<torch::nn::BatchNorm2dImpl>(module) ||
              convert<torch::nn::BatchNorm3dImpl>(module);
    }
    layers = here;
  }
  return layers;
}

}  // namespace lockstep::nn
