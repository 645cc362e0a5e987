#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// Kernels over lists of segments: one launch for many of them. They add up the replicas' gradients in the one order of
// summation (comm/reduction_tree.h), and update in the same pass. Launches only: nothing here waits for the GPU.
namespace lockstep::gpu {

/// Elements of one parameter, on the GPU.
struct SegmentMemory {
  float* target = nullptr;             ///< the weights, or where the sum goes
  float* first_state = nullptr;        ///< SGD: momentum, or null. Adam: mean of gradients
  float* second_state = nullptr;       ///< Adam: mean of squares
  const float* const* gradients = {};  ///< one per replica; null: that one counts as zero
  std::int64_t elements = 0;
};

struct SgdStep {
  float learning_rate, momentum, one_less_dampening, weight_decay;
  bool nesterov, first_step;
};

struct AdamStep {
  float beta1, one_less_beta1, beta2, one_less_beta2;
  float one_over_root_of_bias2, eps, step_size;
  float weight_decay;     ///< Adam: of the gradient; 0 for AdamW
  float keep_of_weights;  ///< AdamW: 1 - learning rate * decay; 1 for Adam
};

using Segments = std::vector<SegmentMemory>;

/// target = sum / divisor.
cudaError_t sum_segments(const Segments& segments, int replicas, std::int64_t divisor, cudaStream_t stream);
/// The arithmetic of `torch::optim::SGD` on a GPU.
cudaError_t update_sgd(const Segments& segments, int replicas, std::int64_t divisor, const SgdStep& step,
                       cudaStream_t stream);
/// The arithmetic of `torch::optim::Adam` and `AdamW` on a GPU.
cudaError_t update_adam(const Segments& segments, int replicas, std::int64_t divisor, const AdamStep& step,
                        cudaStream_t stream);

/// What one block of threads works on.
inline constexpr std::int64_t kChunkElements = 4096;

/// How many replicas the kernels take.
inline constexpr int kMostReplicas = 64;

}  // namespace lockstep::gpu
