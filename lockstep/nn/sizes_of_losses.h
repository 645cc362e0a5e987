#pragma once

#include <cstdint>

namespace lockstep::detail {

/// What a replica's part of a run has given to average_loss (run_local).
struct SizesOfLosses {
  std::int64_t counted = 0;  ///< calls without a size
  std::int64_t last = 0;     ///< the last size given with the rows of the batch; 0: none
};

}  // namespace lockstep::detail
