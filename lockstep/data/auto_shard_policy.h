#pragma once

#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// How the workers of a cluster share the rows of one dataset among themselves under `Assignment::TensorFlow`. By default
/// (`Assignment::ByReplica`) every replica gets the rows that it would get on one machine, and no files are shared out.
enum class AutoShardPolicy {
  Off = -1,  ///< every worker reads everything
  Auto = 0,  ///< File where the source allows it, else Data
  File = 1,  ///< each worker reads its own files
  Data = 2,  ///< each worker reads everything and keeps its own part
  Hint = 3,  ///< `shard(kShardHint, kShardHint)` in the pipeline is filled in with the worker's numbers
};
LOCKSTEP_EXPORT std::string_view to_string(AutoShardPolicy policy);  ///< "AUTO", "FILE", "DATA", "HINT", "OFF"

/// The number of shards and the index that AutoShardPolicy::Hint fills in (SHARD_HINT of TensorFlow).
inline constexpr int kShardHint = -1;

}  // namespace lockstep
