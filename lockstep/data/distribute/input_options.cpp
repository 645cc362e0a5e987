#include "lockstep/data/distribute/input_options.h"

#include <atomic>

#include "lockstep/base/logging.h"
#include "lockstep/data/errors.h"

namespace lockstep {

std::string_view to_string(Assignment assignment) {
  return assignment == Assignment::ByReplica ? "ByReplica" : "TensorFlow";
}

std::string_view to_string(ReplicationMode mode) {
  return mode == ReplicationMode::PerWorker ? "PER_WORKER" : "PER_REPLICA";
}

namespace data {
namespace {

void check_buffer(const InputOptions& options, const char* where) {
  if (options.per_replica_buffer_size >= 0) return;
  refuse_option(where, str("per_replica_buffer_size must be >= 0, got ", options.per_replica_buffer_size),
                "give 0 to read nothing ahead, or leave it out for 1");
}

void say_once_without_effect() {
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) say_info("place_dataset_on_device has no effect: the replicas' memory is the host's");
}

}  // namespace

void check_for_dataset(const InputOptions& options) {
  check_buffer(options, "distribute");
  if (options.replication_mode == ReplicationMode::PerReplica) {
    throw Unimplemented(errors::kNotAvailable,
                        {.what = "PER_REPLICA replication is only supported in distribute_from_function",
                         .where = "distribute",
                         .help = "a dataset that is distributed is one pipeline per worker; give a function that makes "
                                 "the pipeline of one replica to distribute_from_function"});
  }
}

void check_for_function(const InputOptions& options, int workers) {
  const char* where = "distribute_from_function";
  check_buffer(options, where);
  const bool per_replica = options.replication_mode == ReplicationMode::PerReplica;
  if (per_replica && workers > 1) {
    throw Unimplemented(errors::kNotAvailable, {.what = "PER_REPLICA replication is for one worker",
                                                .where = where,
                                                .seen = counted(workers, "worker"),
                                                .help = "make one pipeline per worker: PER_WORKER is the default"});
  }
  if (options.place_dataset_on_device && !per_replica) {
    refuse_option(where, "place_dataset_on_device needs PER_REPLICA replication",
                  "a pipeline that feeds several replicas has no device of its own");
  }
  if (options.place_dataset_on_device && options.fetch_to_device) {
    refuse_option(where, "place_dataset_on_device and fetch_to_device cannot both be on",
                  "elements made on the device need not be fetched: set fetch_to_device = false");
  }
  if (options.place_dataset_on_device) say_once_without_effect();
}

}  // namespace data
}  // namespace lockstep
