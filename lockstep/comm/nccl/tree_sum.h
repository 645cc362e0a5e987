#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/dtype.h"

namespace lockstep::nccl {

/// Maximum number of arrays for `tree_sum`.
inline constexpr int kMostInputs = 256;

/// `ordered_sum` for arrays on the current GPU, with the same bits. Launches only. The output may be one of the inputs.
cudaError_t tree_sum(Dtype dtype, const std::vector<const void*>& inputs, void* output, std::size_t elements,
                     std::int64_t divisor, cudaStream_t stream);

}  // namespace lockstep::nccl
