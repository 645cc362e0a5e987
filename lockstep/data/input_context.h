#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "lockstep/base/export.h"

namespace lockstep {

/// Identifies one input pipeline among all, for the function that makes it.
///
///     auto batch = context.get_per_replica_batch_size(64);
///     return data::digits().shard(context.num_input_pipelines, context.input_pipeline_id).batch(batch);
struct LOCKSTEP_EXPORT InputContext {
  int num_input_pipelines = 1;   ///< one per worker
  int input_pipeline_id = 0;     ///< 0 to num_input_pipelines - 1
  int num_replicas_in_sync = 1;  ///< over all workers

  /// The rows of a global batch for one replica; InvalidArgument if they do not divide evenly.
  std::int64_t get_per_replica_batch_size(std::int64_t global_batch_size) const;

  bool operator==(const InputContext&) const = default;
};

/// "InputContext(input pipeline id 0, total: 1)".
LOCKSTEP_EXPORT std::string to_string(const InputContext& context);
LOCKSTEP_EXPORT std::ostream& operator<<(std::ostream& out, const InputContext& context);

}  // namespace lockstep
