#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/cluster_spec.h"

// The roles of tasks in a cluster, by TensorFlow's rules. All functions throw InvalidArgument for a cluster or a task
// that breaks the rules of check_task.
namespace lockstep {

/// The task of a process in a cluster, as far as known.
struct Task {
  std::optional<std::string> type = {};    ///< the job: "chief", "worker" or "evaluator"
  std::optional<std::int64_t> index = {};  ///< the number within the job
};

/// Jobs are chief (at most one task), worker, evaluator (at most one task) and ps. The task's job must be in the
/// cluster, and have more tasks than its index; only an evaluator need not be listed. No type: any task.
LOCKSTEP_EXPORT void check_task(const ClusterSpec& cluster, const Task& task);

/// The chief saves and writes summaries: the chief's task, or worker 0 of a cluster without one. An evaluator is its own.
LOCKSTEP_EXPORT bool is_chief(const ClusterSpec& cluster, const Task& task);

/// The worker's number among the workers that train together: the chief is 0, workers follow. An evaluator trains with
/// no other task.
LOCKSTEP_EXPORT std::int64_t id_in_cluster(const ClusterSpec& cluster, const Task& task);

/// The number of tasks that train together with a task of this type.
LOCKSTEP_EXPORT int worker_count(const ClusterSpec& cluster, const std::optional<std::string>& task_type);

/// The device name of the task that leads collectives, "/job:worker/replica:0/task:0"; empty without a cluster and for an
/// evaluator.
LOCKSTEP_EXPORT std::string collective_leader(const ClusterSpec& cluster, const Task& task);

/// The task that TensorFlow makes the leader of its coordination service: ps 0 before the chief. In Lockstep it is the
/// chief, see ClusterDescription.
LOCKSTEP_EXPORT std::string coordination_leader(const ClusterSpec& cluster);

}  // namespace lockstep
