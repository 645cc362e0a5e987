#include "lockstep/comm/cluster/cluster_spec.h"

#include <set>
#include <utility>

#include "lockstep/comm/cluster/refusal.h"

namespace lockstep {
namespace {

constexpr int kMostListedTasks = 1'000'000;
constexpr int kMostDifferences = 8;

ClusterSpec::Tasks numbered(const std::vector<std::string>& addresses) {
  ClusterSpec::Tasks tasks;
  for (const std::string& address : addresses) {
    tasks.emplace_hint(tasks.end(), static_cast<int>(tasks.size()), address);
  }
  return tasks;
}

const std::string* find_address(const ClusterSpec& cluster, const std::string& job, int index) {
  if (!cluster.has_job(job)) return nullptr;
  const auto found = cluster.tasks(job).find(index);
  return found == cluster.tasks(job).end() ? nullptr : &found->second;
}

std::string or_missing(const std::string* address) { return address ? shown(*address) : "missing"; }

}  // namespace

ClusterSpec::ClusterSpec(std::initializer_list<Job> jobs) {
  for (const auto& [job, addresses] : jobs) jobs_[job] = numbered(addresses);
}

ClusterSpec::ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs) {
  for (const auto& [job, addresses] : jobs) jobs_[job] = numbered(addresses);
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
    refuse_cluster(str("the cluster has no job '", shown(job), "'"), "name a job that the cluster lists", "",
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
    refuse_cluster(str("job '", shown(job), "' has no task ", index), "use an index that the cluster lists", "",
                   str("cluster ", shown(to_string(*this))));
  }
  return found->second;
}

std::vector<std::optional<std::string>> ClusterSpec::job_tasks(const std::string& job) const {
  const Tasks& all = tasks(job);
  if (all.empty() || all.rbegin()->first < 0 || all.rbegin()->first >= kMostListedTasks) {
    refuse_cluster(str("job '", shown(job), "' must have tasks from 0 to ", kMostListedTasks - 1, " to be listed"),
                   "list the address of each task of the job, in order");
  }
  std::vector<std::optional<std::string>> addresses(static_cast<std::size_t>(all.rbegin()->first + 1));
  for (auto each = all.lower_bound(0); each != all.end(); ++each) {
    addresses[static_cast<std::size_t>(each->first)] = each->second;
  }
  return addresses;
}

bool ClusterSpec::is_dense(const std::string& job) const {
  const Tasks& all = tasks(job);
  return !all.empty() && all.begin()->first == 0 && all.rbegin()->first == std::ssize(all) - 1;
}

std::string difference(const ClusterSpec& a, std::string_view name_of_a, const ClusterSpec& b,
                       std::string_view name_of_b) {
  std::set<std::pair<std::string, int>> tasks;
  for (const ClusterSpec* each : {&a, &b}) {
    for (const std::string& job : each->jobs()) {
      for (const int index : each->task_indices(job)) tasks.emplace(job, index);
    }
  }
  std::string lines;
  int count = 0;
  for (const auto& [job, index] : tasks) {
    const std::string *here = find_address(a, job, index), *there = find_address(b, job, index);
    if ((here && there && *here == *there) || ++count > kMostDifferences) continue;
    lines += str(count > 1 ? "\n" : "", shown(job), ' ', index, " is ", or_missing(here), " on ", name_of_a, ", but ",
                 or_missing(there), " on ", name_of_b);
  }
  return count > kMostDifferences ? str(lines, "\nand ", count - kMostDifferences, " more") : lines;
}

}  // namespace lockstep
