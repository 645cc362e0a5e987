#pragma once

#include "lockstep/nn/cuda/segment_kernels.h"

// Norms of gradients, in blocks whose sums do not depend on ownership, and clipping by them. Launches only.
namespace lockstep::gpu {

/// sums[b] = the sum of squares of elements [b * block, (b + 1) * block) in double, in an order that depends only on
/// the element's place in its block; the last of `blocks` includes the rest.
cudaError_t sum_squares_in_blocks(const float* values, std::int64_t elements, std::int64_t block, double* sums,
                                  std::size_t blocks, cudaStream_t stream);
cudaError_t sum_squares_in_blocks(const double* values, std::int64_t elements, std::int64_t block, double* sums,
                                  std::size_t blocks, cudaStream_t stream);

/// The same for the targets of many segments; those without a target count as zero. `sums[i]` is where the blocks of
/// segment i begin. A block is kChunkElements long.
cudaError_t sum_squares_of_segments(const Segments& segments, const std::vector<double*>& sums, cudaStream_t stream);
/// factor = max_norm / (root of the sum of `sums` + 1e-6). Adds in the one order of summation. `scratch` has room for 2
/// * count numbers.
cudaError_t norm_factor(const double* sums, std::size_t count, double max_norm, double* scratch, double* factor,
                        cudaStream_t stream);
/// target *= factor if the factor, which is on the GPU, is below 1.
cudaError_t shrink_segments(const Segments& segments, const double* factor, cudaStream_t stream);

/// target *= factor.
cudaError_t multiply_segments(const Segments& segments, const double* factor, cudaStream_t stream);

}  // namespace lockstep::gpu
