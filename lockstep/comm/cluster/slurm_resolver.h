#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/cluster_resolver.h"

namespace lockstep {

/// The hosts of a list as Slurm writes it: "gpu5,node[01-03,7]" gives gpu5, node01, node02, node03, node7.
LOCKSTEP_EXPORT std::vector<std::string> expand_hostlist(std::string_view list);

/// The counts of a list as Slurm writes it: "3(x2),1" gives 3, 3, 1.
LOCKSTEP_EXPORT std::vector<int> expand_tasks_per_node(std::string_view list);

using SlurmHosts = std::vector<std::pair<std::string, int>>;  ///< hosts and the number of tasks on each

/// Options of a SlurmClusterResolver.
struct SlurmOptions {
  std::map<std::string, int> jobs = {};  ///< tasks of each job, by name; empty: all tasks of the step are workers
  int port_base = 8888;                  ///< port of the first task on a host; the next one has the next port
  std::optional<int> gpus_per_node =
      {};  ///< default: those of CUDA_VISIBLE_DEVICES, otherwise SLURM_GPUS_ON_NODE, otherwise none
  std::optional<int> gpus_per_task = {};   ///< default: all GPUs of a node, divided by its tasks; 0 trains on CPUs
  std::optional<int> tasks_per_node = {};  ///< default: SLURM_STEP_TASKS_PER_NODE
  SlurmHosts tasks_of_hosts = {};          ///< instead of Slurm's lists of hosts and tasks
  std::string rpc_layer = "grpc";          ///< returned by `rpc_layer()`, not used
};

/// The meaning of a Slurm step's variables for one of its tasks.
struct SlurmPlan {
  ClusterSpec cluster;    ///< all tasks of the step
  std::string task_type;  ///< the job of this task
  int task_index = 0;     ///< its number within the job
  int gpus_per_task = 0;  ///< 0: trains on CPUs
  int first_gpu = 0;      ///< this task's first GPU among those that it sees
};

/// A variable of the environment; none if it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
/// A variable of this process's environment.
LOCKSTEP_EXPORT std::optional<std::string> process_environment(const char* name);

/// A variable that is missing, or contradicts the options, is FailedPrecondition; one that makes no sense is
/// InvalidArgument.
LOCKSTEP_EXPORT SlurmPlan plan_slurm(const SlurmOptions& options, const Environment& environment);

/// The cluster of a Slurm step (srun). Tasks are numbered as Slurm numbers them, host after host.
class LOCKSTEP_EXPORT SlurmClusterResolver final : public ClusterResolver {
 public:
  explicit SlurmClusterResolver(const SlurmOptions& options = {}, const Environment& environment = process_environment)
      : rpc_layer_(options.rpc_layer), plan_(plan_slurm(options, environment)) {}

  ClusterSpec cluster_spec() const override { return plan_.cluster; }
  std::optional<std::string> task_type() const override { return plan_.task_type; }
  std::optional<std::int64_t> task_id() const override { return plan_.task_index; }
  std::map<std::string, int> num_accelerators() const override { return {{"GPU", plan_.gpus_per_task}}; }
  std::optional<std::string> rpc_layer() const override { return rpc_layer_; }
  /// What was read from Slurm's variables.
  const SlurmPlan& plan() const { return plan_; }

 private:
  std::string rpc_layer_;
  SlurmPlan plan_;
};

}  // namespace lockstep
