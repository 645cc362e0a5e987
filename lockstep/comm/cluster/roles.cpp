#include "lockstep/comm/cluster/roles.h"

#include "lockstep/base/device_name.h"
#include "lockstep/comm/cluster/refusal.h"

namespace lockstep {
namespace {

constexpr const char* kKnownJobs = "use the jobs chief, worker and evaluator";

bool is_known_job(std::string_view job) {
  return job == "chief" || job == "worker" || job == "evaluator" || job == "ps";
}

int task_count(const ClusterSpec& cluster, const std::string& job) {
  return cluster.has_job(job) ? cluster.num_tasks(job) : 0;
}

[[noreturn]] void refuse(const ClusterSpec& cluster, std::string what, std::string help) {
  refuse_cluster(std::move(what), std::move(help), "", str("cluster ", shown(to_string(cluster))));
}

std::string first_task(const std::string& job) { return to_string(DeviceName{.job = job, .replica = 0, .task = 0}); }

[[noreturn]] void refuse_idle(const ClusterSpec& cluster, const std::optional<std::string>& type) {
  refuse(cluster, str("a task of type '", shown(type.value_or("none")), "' does not train"), kKnownJobs);
}

/// The chief's task, or the first worker's.
std::string chief_of(const ClusterSpec& cluster) {
  for (const char* job : {"chief", "worker"}) {
    if (cluster.has_job(job)) return first_task(job);
  }
  refuse(cluster, "the cluster has no job that trains", "add a job \"worker\" or \"chief\" to the cluster");
}

}  // namespace

void check_task(const ClusterSpec& cluster, const Task& task) {
  for (const std::string& job : cluster.jobs()) {
    if (!is_known_job(job)) refuse(cluster, str("the cluster has the unknown job '", shown(job), "'"), kKnownJobs);
  }
  for (const char* job : {"chief", "evaluator"}) {
    if (const int count = task_count(cluster, job); count > 1) {
      refuse(cluster, str("a cluster must have at most one ", job, ", got ", count),
             str("list one address under \"", job, "\", and the others under \"worker\""));
    }
  }
  if (!task.type) return;
  const std::string& type = *task.type;
  if (!is_known_job(type)) refuse(cluster, str("the task type '", shown(type), "' is unknown"), kKnownJobs);
  if (!cluster.has_job(type)) {
    if (type == "evaluator") return;
    refuse(cluster, str("this task is of type '", type, "', which the cluster does not have"),
           str("list this task under \"", type, "\" in the cluster, or set the type to a job of the cluster"));
  }
  if (const int count = cluster.num_tasks(type); !task.index || *task.index >= count) {
    const std::string own = task.index ? str(type, ' ', *task.index) : str("a ", type, " without index");
    refuse(cluster, str("this task is ", own, ", but the cluster lists ", counted(count, type)),
           str("set the task's index, from 0 to the number of tasks less one, or list all tasks of \"", type, "\""));
  }
}

bool is_chief(const ClusterSpec& cluster, const Task& task) {
  check_task(cluster, task);
  if (task.type == "chief" || task.type == "evaluator") return true;
  return task.type == "worker" && task.index == 0 && !cluster.has_job("chief");
}

std::int64_t id_in_cluster(const ClusterSpec& cluster, const Task& task) {
  check_task(cluster, task);
  if (task.type == "chief") return 0;
  if (task.type == "worker") return *task.index + task_count(cluster, "chief");
  if (task.type == "evaluator" && task.index) return *task.index;
  refuse_idle(cluster, task.type);
}

int worker_count(const ClusterSpec& cluster, const std::optional<std::string>& task_type) {
  check_task(cluster, {.type = task_type, .index = 0});
  if (task_type == "evaluator") {
    if (cluster.has_job("evaluator")) return cluster.num_tasks("evaluator");
    refuse(cluster, "this task is the evaluator, which the cluster does not list",
           "add \"evaluator\": [\"host:port\"] to the cluster of this task");
  }
  if (task_type == "chief" || task_type == "worker")
    return task_count(cluster, "chief") + task_count(cluster, "worker");
  refuse_idle(cluster, task_type);
}

std::string collective_leader(const ClusterSpec& cluster, const Task& task) {
  if (cluster.empty()) return "";
  check_task(cluster, task);
  return task.type == "evaluator" ? "" : chief_of(cluster);
}

std::string coordination_leader(const ClusterSpec& cluster) {
  if (cluster.empty()) return "";
  return cluster.has_job("ps") ? first_task("ps") : chief_of(cluster);
}

}  // namespace lockstep
