#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// Kernels over lists of segments: one launch for many of them. They sum the replicas' gradients in the one order of
// summation (comm/reduction_tree.h), and update in the same pass. Launches only: nothing here waits for the GPU.
namespace lockstep::gpu {

/// Part of one parameter on the GPU.
struct SegmentMemory {
  float* target = nullptr;             ///< the weights, or the destination of the sum
  float* first_state = nullptr;        ///< SGD: momentum, or null. Adam: mean of gradients
  float* second_state = nullptr;       ///< Adam: mean of squares
  const float* const* gradients = {};  ///< one per replica; null counts as zero
  std::int64_t elements = 0;
};

// The numbers of a segment's update. Kernels read them on the GPU, so that a recorded step can be replayed with new
// numbers.
struct SgdStep {
  float learning_rate, momentum, one_less_dampening, weight_decay;
  bool nesterov, first_step;
  bool skip;  ///< change nothing
};

struct AdamStep {
  float beta1, one_less_beta1, beta2, one_less_beta2;
  float one_over_root_of_bias2, eps, step_size;
  float weight_decay;     ///< Adam: added to the gradient; 0 for AdamW
  float keep_of_weights;  ///< AdamW: 1 - learning rate * decay; 1 for Adam
  bool skip;
};

using Segments = std::vector<SegmentMemory>;

/// target = sum / divisor.
cudaError_t sum_segments(const Segments& segments, int replicas, std::int64_t divisor, cudaStream_t stream);
/// The arithmetic of `torch::optim::SGD` on a GPU. `steps`, also on the GPU, has one entry per segment; no segment may
/// be empty.
cudaError_t update_sgd(const Segments& segments, int replicas, std::int64_t divisor, const SgdStep* steps,
                       cudaStream_t stream);
/// The arithmetic of `torch::optim::Adam` and `AdamW` on a GPU.
cudaError_t update_adam(const Segments& segments, int replicas, std::int64_t divisor, const AdamStep* steps,
                        cudaStream_t stream);

/// A sum that is not finite, as one number: 256 * parameter + replica.
using BadSum = unsigned long long;
inline constexpr BadSum kAllFinite = ~0ULL;
inline constexpr int kNoReplica = 255;  ///< the gradients are finite, but their sum is not

/// Sets `bad`, which is on the GPU, to the first sum that is not finite, or to kAllFinite. `parameters`: one per
/// segment. `are_sums`: the gradients are sums already, so no replica can be named.
cudaError_t find_bad_sum(const Segments& segments, const std::vector<int>& parameters, int replicas, bool are_sums,
                         BadSum* bad, cudaStream_t stream);

/// Elements per block of threads.
inline constexpr std::int64_t kChunkElements = 4096;

/// Maximum number of replicas in the kernels.
inline constexpr int kMostReplicas = 64;

}  // namespace lockstep::gpu
