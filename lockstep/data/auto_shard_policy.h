#pragma once

#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// How the workers of a cluster share the rows of one dataset under `Assignment::TensorFlow`. By default
/// (`Assignment::ByReplica`) every replica gets the rows it would get on one machine, and workers share no files.
enum class AutoShardPolicy {
  Off = -1,  ///< every worker reads everything
  Auto = 0,  ///< File if the source allows it, otherwise Data
  File = 1,  ///< each worker reads its own files
  Data = 2,  ///< each worker reads everything and keeps its own part
  Hint = 3,  ///< `shard(kShardHint, kShardHint)` in the pipeline is filled in with the worker's numbers
};
LOCKSTEP_EXPORT std::string_view to_string(AutoShardPolicy policy);  ///< "AUTO", "FILE", "DATA", "HINT", "OFF"

/// The shard count and index that AutoShardPolicy::Hint replaces (TensorFlow's SHARD_HINT).
inline constexpr int kShardHint = -1;

}  // namespace lockstep
