#include "lockstep/comm/cluster/cluster_description.h"

#include "lockstep/comm/cluster/refusal.h"

namespace lockstep {
namespace {

/// The part of a cluster that trains together with a task of this type.
ClusterSpec training_part(const ClusterSpec& cluster, const std::string& type) {
  std::map<std::string, ClusterSpec::Tasks> jobs;
  const bool evaluates = type == "evaluator";
  for (const char* job : {"chief", "worker", "evaluator"}) {
    const bool trains = (std::string_view(job) == "evaluator") == evaluates;
    if (trains && cluster.has_job(job)) jobs[job] = cluster.tasks(job);
  }
  return ClusterSpec::of_tasks(std::move(jobs));
}

void check_numbers(const ClusterSpec& training, const Task& task) {
  if (*task.index < 0) {
    refuse_cluster(str("the index of a task must be >= 0, got ", *task.index), "number the tasks of a job from 0");
  }
  for (const std::string& job : training.jobs()) {
    if (training.is_dense(job)) continue;
    if (training.num_tasks(job) == 0) {
      refuse_cluster(str("job '", job, "' of the cluster has no tasks"), "list its tasks, or leave the job out");
    }
    refuse_cluster(str("the tasks of job '", job, "' must be numbered 0, 1, 2, ... without gaps"),
                   "list the addresses of all tasks that train: a worker connects to all others", "",
                   str("cluster ", shown(to_string(training))));
  }
}

WorkerEntry entry_of(const std::string& job, int index, const std::string& address) try {
  return {job, index, parse_address(address)};
} catch (InvalidArgument& error) {
  error.add_where(str(job, ' ', index, " of the cluster"));
  throw;
}

void add_workers(const ClusterSpec& training, std::vector<WorkerEntry>& workers) {
  std::map<std::pair<std::string, int>, std::size_t> seen;
  for (const std::string& job : training.jobs()) {  // sorted: the chief comes before the workers
    for (const auto& [index, text] : training.tasks(job)) {
      workers.push_back(entry_of(job, index, text));
      const Address& address = workers.back().address;
      const auto [first, is_new] = seen.emplace(std::pair(address.host, int{address.port}), workers.size() - 1);
      if (is_new) continue;
      refuse_cluster(str(job, ' ', index, " has the address of ", to_string(workers[first->second])),
                     "give every task a port of its own");
    }
  }
}

}  // namespace

std::string to_string(const WorkerEntry& worker) {
  return str(worker.task_type, ' ', worker.task_index, " (", to_string(worker.address), ')');
}

std::vector<int> ClusterDescription::workers_on_this_host() const {
  if (is_local()) return {0};
  std::vector<int> ids;
  for (int each = 0; each < num_workers(); ++each) {
    const std::string& host = workers[static_cast<std::size_t>(each)].address.host;
    if (is_same_host(host, self().address.host)) ids.push_back(each);
  }
  return ids;
}

DeviceName ClusterDescription::device(std::string type, int index) const {
  DeviceName name{.type = std::move(type)};
  if (!is_local()) {
    name.job = self().task_type;
    name.task = self().task_index;
  }
  if (!name.type.empty()) name.index = index;
  return name;
}

ClusterDescription describe_cluster(const ClusterSpec& cluster, const Task& task) {
  if (cluster.empty()) return {};
  if (!task.type || !task.index) {
    refuse_cluster(str("the cluster is known, but the ", task.type ? "index" : "type", " of this task is not"),
                   "name the task of this process: \"task\": {\"type\": \"worker\", \"index\": 0} in TF_CONFIG, or "
                   "task_type and task_id of the resolver");
  }
  const std::int64_t id = id_in_cluster(cluster, task);
  const int count = worker_count(cluster, task.type);  // rejects an evaluator that is not listed
  ClusterDescription result;
  result.workers.reserve(static_cast<std::size_t>(count));
  result.training = training_part(cluster, *task.type);
  check_numbers(result.training, task);
  add_workers(result.training, result.workers);
  result.id = static_cast<int>(id);
  return result;
}

std::string to_string(const ClusterDescription& description) {
  if (description.is_local()) return "one worker, without a cluster";
  std::string text =
      str("worker ", description.id + 1, " of ", description.num_workers(), ": ", to_string(description.self()));
  if (!description.is_chief()) text += str("; the chief is ", to_string(description.chief()));
  return text;
}

}  // namespace lockstep
