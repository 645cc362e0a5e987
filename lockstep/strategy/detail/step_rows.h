#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>

#include "lockstep/values/per_replica.h"

namespace lockstep::detail {

/// The rows of the batch that was given to `run`.
struct StepRows {
  c10::SmallVector<std::int64_t, 16> here = {};  ///< of each local replica; empty where no batch was given
  /// Of all workers together; -1: unknown, or some replica has none. The same on all workers.
  std::int64_t all = -1;
  BatchPlace place = {};
};

}  // namespace lockstep::detail
