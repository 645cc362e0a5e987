#include "lockstep/comm/cluster/cluster_spec.h"

#include <set>
#include <utility>

#include "lockstep/comm/cluster/refusal.h"

namespace lockstep {
namespace {

constexpr int kMostListedTasks = 1'000'000;
constexpr int kMostDifferences = 8;

const ClusterSpec::Tasks& tasks_or_none(const ClusterSpec& cluster, const std::string& job) {
  static const ClusterSpec::Tasks none;
  return cluster.has_job(job) ? cluster.tasks(job) : none;
}

const std::string* find(const ClusterSpec::Tasks& tasks, int index) {
  const auto found = tasks.find(index);
  return found == tasks.end() ? nullptr : &found->second;
}

std::string or_missing(const std::string* address) { return address ? shown(*address) : "missing"; }

}  // namespace

ClusterSpec::ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs) {
  for (const auto& [job, addresses] : jobs) {
    Tasks& tasks = jobs_[job];
    for (const std::string& address : addresses) tasks.emplace_hint(tasks.end(), std::ssize(tasks), address);
  }
}

ClusterSpec ClusterSpec::of_tasks(std::map<std::string, Tasks> jobs) {
  ClusterSpec result;
  result.jobs_ = std::move(jobs);
  return result;
}

std::vector<std::string> ClusterSpec::jobs() const {
  std::vector<std::string> names;
  for (const auto& [job, tasks] : jobs_) names.push_back(job);
  return names;
}

const ClusterSpec::Tasks& ClusterSpec::tasks(const std::string& job) const {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) {
    refuse_cluster(str("the cluster has no job '", shown(job), "'"), "", "name a job that the cluster lists",
                   str("cluster ", shown(to_string(*this))));
  }
  return found->second;
}

std::vector<int> ClusterSpec::task_indices(const std::string& job) const {
  std::vector<int> indices;
  for (const auto& [index, address] : tasks(job)) indices.push_back(index);
  return indices;
}

const std::string& ClusterSpec::task_address(const std::string& job, long long index) const {
  const Tasks& all = tasks(job);
  const auto found = std::in_range<int>(index) ? all.find(static_cast<int>(index)) : all.end();
  if (found == all.end()) {
    refuse_cluster(str("job '", shown(job), "' has no task ", index), "", "use an index that the cluster lists",
                   str("cluster ", shown(to_string(*this))));
  }
  return found->second;
}

std::vector<std::optional<std::string>> ClusterSpec::job_tasks(const std::string& job) const {
  const Tasks& all = tasks(job);
  if (all.empty()) refuse_cluster(str("job '", shown(job), "' has no tasks"), "", "list the address of each task");
  const int last = all.rbegin()->first;
  if (last >= kMostListedTasks) {
    refuse_cluster(str("job '", shown(job), "' has a task ", last, ", which is too high to list"), "",
                   str("number tasks from 0; use tasks(job) for indices of ", kMostListedTasks, " or more"));
  }
  std::vector<std::optional<std::string>> addresses(static_cast<std::size_t>(last + 1));
  for (const auto& [index, address] : all) {
    if (index >= 0) addresses[static_cast<std::size_t>(index)] = address;
  }
  return addresses;
}

bool ClusterSpec::is_dense(const std::string& job) const {
  const Tasks& all = tasks(job);
  return !all.empty() && all.begin()->first == 0 && all.rbegin()->first == std::ssize(all) - 1;
}

std::string difference(const ClusterSpec& a, std::string_view name_of_a, const ClusterSpec& b,
                       std::string_view name_of_b) {
  std::set<std::string> jobs;
  for (const ClusterSpec* each : {&a, &b}) {
    for (std::string& job : each->jobs()) jobs.insert(std::move(job));
  }
  std::string lines;
  int count = 0;
  const auto add = [&](const std::string& line) {
    if (count++ < kMostDifferences) lines += str(lines.empty() ? "" : "\n", line);
  };
  for (const std::string& job : jobs) {
    const ClusterSpec::Tasks& in_a = tasks_or_none(a, job);
    const ClusterSpec::Tasks& in_b = tasks_or_none(b, job);
    if (in_a.empty() && in_b.empty() && a.has_job(job) != b.has_job(job)) {
      add(str("job ", shown(job), " without tasks is listed on ", a.has_job(job) ? name_of_a : name_of_b, " only"));
    }
    std::set<int> indices;
    for (const ClusterSpec::Tasks* each : {&in_a, &in_b}) {
      for (const auto& [index, address] : *each) indices.insert(index);
    }
    for (const int index : indices) {
      const std::string* here = find(in_a, index);
      const std::string* there = find(in_b, index);
      if (here && there && *here == *there) continue;
      add(str(shown(job), ' ', index, " is ", or_missing(here), " on ", name_of_a, ", but ", or_missing(there), " on ",
              name_of_b));
    }
  }
  if (count > kMostDifferences) lines += str("\nand ", count - kMostDifferences, " more");
  return lines;
}

}  // namespace lockstep
