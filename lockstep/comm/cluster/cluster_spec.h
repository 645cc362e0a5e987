#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep {

/// The tasks of a cluster and their addresses: jobs ("chief", "worker", ...) with tasks by index, one address each.
///
///     ls::ClusterSpec cluster{{"chief", {"host0:2222"}}, {"worker", {"host1:2222", "host2:2222"}}};
///
/// It stores any input; describe_cluster checks whether such a cluster can train.
class LOCKSTEP_EXPORT ClusterSpec {
 public:
  using Tasks = std::map<int, std::string>;  ///< addresses by task index

  /// A job whose tasks are numbered in the order of their addresses.
  struct Job {
    std::string name;  ///< "chief", "worker", "evaluator" or "ps"
    /// "host:port" of task 0, 1, ...
    std::vector<std::string> addresses;
  };

  ClusterSpec() = default;
  ClusterSpec(std::initializer_list<Job> jobs);
  explicit ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs);
  /// Jobs that list only some of their tasks.
  static ClusterSpec of_tasks(std::map<std::string, Tasks> jobs);

  bool empty() const { return jobs_.empty(); }
  /// Whether the cluster has this job.
  bool has_job(const std::string& job) const { return jobs_.contains(job); }
  std::vector<std::string> jobs() const;  ///< sorted

  /// The tasks of a job. A job that the cluster does not have is InvalidArgument in all of these.
  int num_tasks(const std::string& job) const { return static_cast<int>(tasks(job).size()); }
  std::vector<int> task_indices(const std::string& job) const;
  const Tasks& tasks(const std::string& job) const;
  const std::string& task_address(const std::string& job, long long index) const;
  /// The addresses of tasks 0, 1, ...; indices that are not listed are empty. A job without tasks is InvalidArgument.
  std::vector<std::optional<std::string>> job_tasks(const std::string& job) const;
  /// Whether the tasks of a job are numbered 0, 1, ... without gaps. A job without tasks is not.
  bool is_dense(const std::string& job) const;

  bool operator==(const ClusterSpec&) const = default;

 private:
  std::map<std::string, Tasks> jobs_;
};

/// One line of JSON, the same for equal clusters: {"chief":["c:1"],"worker":["w0:1","w1:1"]}. Jobs with gaps are objects.
LOCKSTEP_EXPORT std::string to_string(const ClusterSpec& cluster);

/// Reads the output of to_string, and every form of "cluster" in TF_CONFIG.
LOCKSTEP_EXPORT ClusterSpec parse_cluster(std::string_view json);

/// The differences between two clusters, for people, one line per task; empty if they have the same tasks.
///
///     worker 1 is host1:2222 on worker 0, but host7:2222 on worker 2
///     worker 3 is host3:2222 on worker 0, but missing on worker 2
LOCKSTEP_EXPORT std::string difference(const ClusterSpec& a, std::string_view name_of_a, const ClusterSpec& b,
                                       std::string_view name_of_b);

}  // namespace lockstep
