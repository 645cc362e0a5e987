#pragma once

#include <string_view>

#include "lockstep/base/export.h"
#include "lockstep/data/auto_shard_policy.h"

namespace lockstep {

/// Which replica gets which rows of a global batch.
enum class Assignment {
  ByReplica,   ///< each batch is cut evenly, piece k for replica k: the same rows whatever the number of workers
  TensorFlow,  ///< batches are cut and dealt to workers by TensorFlow's rules: rows move when workers are added
};

/// Whether a function given to `distribute_from_function` makes a pipeline per worker or per replica.
enum class ReplicationMode { PerWorker, PerReplica };

/// How a distributed dataset is read; fields as in TensorFlow, without "experimental".
///
///     auto batches = strategy.distribute(dataset, {.per_replica_buffer_size = 2});
struct InputOptions {
  bool fetch_to_device = true;  ///< false: elements stay in host memory
  /// Whether each worker or each replica gets a pipeline.
  ReplicationMode replication_mode = ReplicationMode::PerWorker;
  /// Requires PerReplica and fetch_to_device = false. Only logs a line so far: on CPU replicas the pipeline already
  /// runs in the replica's memory.
  bool place_dataset_on_device = false;
  int per_replica_buffer_size = 1;                ///< elements read ahead for each replica; 0: none
  Assignment assignment = Assignment::ByReplica;  ///< which replica gets which rows
};

LOCKSTEP_EXPORT std::string_view to_string(Assignment assignment);
LOCKSTEP_EXPORT std::string_view to_string(ReplicationMode mode);  ///< "PER_WORKER", "PER_REPLICA"

namespace data {

/// Throws for options that `distribute` does not support: Unimplemented for PER_REPLICA, InvalidArgument for bad
/// numbers.
LOCKSTEP_EXPORT void check_for_dataset(const InputOptions& options);
/// Throws for options that `distribute_from_function` does not support; PER_REPLICA requires a single worker.
LOCKSTEP_EXPORT void check_for_function(const InputOptions& options, int workers);

}  // namespace data
}  // namespace lockstep
