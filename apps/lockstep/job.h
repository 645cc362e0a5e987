#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/cluster/cluster_spec.h"

namespace lockstep::app {

/// What a worker learns about its job, as environment variables.
struct JobIdentity {
  std::string key;  ///< LOCKSTEP_JOB_KEY: 32 random bytes in hex, which lets a worker join; empty: as it is set already
  std::string run_id;  ///< LOCKSTEP_RUN_ID: the same for all attempts
  int generation = 0;  ///< LOCKSTEP_GENERATION: which attempt, so that a worker of an earlier one is told apart
};

/// `{"cluster":{"worker":["host:port",...]},"task":{"index":2,"type":"worker"}}`
std::string tf_config_of(const ClusterSpec& cluster, const std::string& type, int index);

std::vector<std::string> task_environment(const JobIdentity& job, const ClusterSpec& cluster, const std::string& type,
                                          int index);

/// Whether the environment has a job key.
bool key_is_set();

std::string random_hex(int bytes);

/// Free ports of 127.0.0.1. They are held while they are chosen and free again on return, so somebody else may take one
/// before the worker does; they lie below the range from which the kernel serves connections, to make that rare.
std::vector<int> free_ports(int count);

}  // namespace lockstep::app
