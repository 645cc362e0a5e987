#pragma once

#include "tests/gpu/gpu_support.h"
#include "tests/support/plain_loop.h"

namespace lockstep {

inline Batch gpu_batch(std::int64_t rows, at::ScalarType type = at::kFloat) {
  const Batch batch = random_batch(rows, type);
  return {batch.rows.to(kGpu), batch.labels.to(kGpu)};
}

}  // namespace lockstep
