#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "lockstep/base/export.h"
#include "lockstep/nn/mirrored_module.h"

// Batch normalisation over the batches of all replicas together.
namespace lockstep::nn {

namespace detail {

/// The inputs of a batch-norm layer, as `torch::batch_norm` takes them.
struct BatchNormInput {
  at::Tensor input, weight, bias, running_mean, running_var;
  double momentum = 0.1;
  double eps = 1e-5;
};

/// Normalises with the statistics of all replicas' batches; exact for uneven and empty ones, and in its gradients.
LOCKSTEP_EXPORT at::Tensor sync_batch_norm(const BatchNormInput& layer);

}  // namespace detail

/// A batch-norm layer that sees the batches of all replicas: while training inside `run` every replica must call it.
/// Elsewhere, and with one replica, it is LibTorch's own.
template <class Base>
struct SyncBatchNormImpl : Base {
  using Base::Base;

  /// Normalises `input`, in training with the statistics of all replicas.
  at::Tensor forward(const at::Tensor& input) {
    const bool alone =
        !has_strategy() || in_cross_replica_context() || get_replica_context().num_replicas_in_sync() == 1;
    if (!this->is_training() || alone) return Base::forward(input);
    this->_check_input_dim(input);
    double momentum = this->options.momentum().value_or(0.0);
    const bool counts = this->options.track_running_stats();
    if (counts && !this->options.momentum())
      momentum = 1.0 / (1.0 + static_cast<double>(this->num_batches_tracked.template item<std::int64_t>()));
    at::Tensor output = detail::sync_batch_norm(
        {input, this->weight, this->bias, this->running_mean, this->running_var, momentum, this->options.eps()});
    if (counts) this->num_batches_tracked.add_(1);  // only now: the meeting may have failed
    return output;
  }
};

using SyncBatchNorm1dImpl = SyncBatchNormImpl<torch::nn::BatchNorm1dImpl>;  ///< takes inputs of one dimension
using SyncBatchNorm2dImpl = SyncBatchNormImpl<torch::nn::BatchNorm2dImpl>;  ///< takes images
using SyncBatchNorm3dImpl = SyncBatchNormImpl<torch::nn::BatchNorm3dImpl>;  ///< takes volumes
/// A batch-norm layer over all replicas, for inputs of one dimension, images or volumes.
TORCH_MODULE(SyncBatchNorm1d);
TORCH_MODULE(SyncBatchNorm2d);
TORCH_MODULE(SyncBatchNorm3d);

/// Makes the ordinary batch-norm layers of a model (BatchNorm1d, 2d, 3d) use the batches of all replicas from now on.
/// Returns how many layers were converted in each replica. Such a layer needs more than one value per channel on every
/// replica that has any: LibTorch rejects a single row of [1, C] before Lockstep sees it. Build the model with
/// SyncBatchNorm1d if a replica may get one row.
LOCKSTEP_EXPORT int convert_sync_batch_norm(lockstep::detail::ModuleCore& model);
template <class M>
int convert_sync_batch_norm(MirroredModule<M>& model) {
  return convert_sync_batch_norm(*model.core());
}

}  // namespace lockstep::nn
