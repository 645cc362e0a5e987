#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/base/export.h"

namespace lockstep::detail {

/// The sizes that a replica passed to average_loss in its part of a run (run_local).
struct SizesOfLosses {
  std::int64_t counted = 0;  ///< calls without a size
  std::int64_t last = 0;     ///< the last size given with the rows of the batch; 0: none
};

/// The losses of all replicas, without a meeting if the batch given to run determines their number. Inside run, on
/// every replica.
LOCKSTEP_EXPORT std::int64_t count_losses(const at::Tensor& losses);

}  // namespace lockstep::detail
