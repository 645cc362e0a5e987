#pragma once

#include <string>
#include <vector>

#include "lockstep/base/device_name.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/address.h"
#include "lockstep/comm/cluster/cluster_spec.h"
#include "lockstep/comm/cluster/roles.h"

namespace lockstep {

/// A worker's tasks in addition to training. This is advice: saving stays a call that all workers make.
struct Duties {
  bool should_checkpoint = true;    ///< the chief's: its files are the ones to keep
  bool should_save_summary = true;  ///< the chief's
  bool should_init = true;          ///< every worker's
  bool between_graph = true;        ///< every worker runs the program itself

  bool operator==(const Duties&) const = default;
};

/// A worker of a cluster, as its entry names it.
struct WorkerEntry {
  std::string task_type;  ///< the job: "chief" or "worker"
  int task_index = 0;     ///< its number within the job
  Address address;        ///< where other workers reach it

  std::string name() const { return task_type + " " + std::to_string(task_index); }  ///< "worker 1"
  bool operator==(const WorkerEntry&) const = default;
};

LOCKSTEP_EXPORT std::string to_string(const WorkerEntry& worker);  ///< "worker 1 (host1:2222)"

/// This process's place among the workers that train together, validated: every worker has its own index and address.
/// Without a cluster it is one worker without an address.
struct LOCKSTEP_EXPORT ClusterDescription {
  ClusterSpec training;              ///< the jobs that train together; empty: no cluster
  std::vector<WorkerEntry> workers;  ///< by id; the chief is 0. Empty: no cluster
  int id = 0;                        ///< number of this worker

  /// Whether there is no cluster; how many workers train together, which is 1 then; whether this worker is the first of them.
  bool is_local() const { return workers.empty(); }
  int num_workers() const { return is_local() ? 1 : static_cast<int>(workers.size()); }
  bool is_chief() const { return id == 0; }
  const WorkerEntry& self() const { return workers[static_cast<std::size_t>(id)]; }  ///< not for is_local()
  const WorkerEntry& chief() const { return workers.front(); }                       ///< not for is_local()
  /// What TensorFlow asks a strategy about its worker.
  Duties duties() const { return {.should_checkpoint = is_chief(), .should_save_summary = is_chief()}; }

  /// The number of a replica among those of all workers, each of which has `replicas_per_worker`.
  int replica_id(int replicas_per_worker, int local_replica) const { return id * replicas_per_worker + local_replica; }

  /// Ids of the workers whose entries name the same host as this worker's, itself included: they share its cores.
  std::vector<int> workers_on_this_host() const;

  /// A device of this worker, "/job:worker/task:1/device:CPU:0"; without a type the worker itself, "/job:worker/task:1".
  DeviceName device(std::string type = "", int index = 0) const;
};

/// Determines the place of `task` in a cluster. Throws InvalidArgument if the cluster cannot train with it.
LOCKSTEP_EXPORT ClusterDescription describe_cluster(const ClusterSpec& cluster, const Task& task);

/// For logs: "worker 2 of 3: worker 1 (host1:2222); the chief is chief 0 (host0:2222)".
LOCKSTEP_EXPORT std::string to_string(const ClusterDescription& description);

}  // namespace lockstep
