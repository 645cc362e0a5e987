#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/cluster_spec.h"
#include "lockstep/contrib/cross_tower_ops.h"
#include "lockstep/contrib/distribution_strategy.h"

namespace lockstep::contrib {

/// Options of a MirroredStrategy.
struct MirroredOptions {
  /// One tower per device. Not together with a number of GPUs.
  std::optional<std::vector<std::string>> devices = {};
  /// One tower on each of the first so many GPUs; 0: on the CPU. Unset, without `devices`: all GPUs.
  std::optional<int> num_gpus = {};
  /// Alias of `num_gpus`.
  std::optional<int> num_gpus_per_worker = {};
  /// How values are sent between the towers of one worker. Unset: the ordered sum.
  std::shared_ptr<CrossTowerOps> cross_tower_ops = {};
  /// Whether datasets are read ahead. Unset: yes. The order of elements is the same either way.
  std::optional<bool> prefetch_on_device = {};
  /// As in lockstep::MirroredOptions.
  std::optional<int> intra_op_threads = {};
  std::optional<std::uint64_t> seed = {};  ///< seed of the towers' random numbers; unset: LibTorch's generator
};

/// From now on the CPU of this process counts as `n` devices (TensorFlow's logical CPUs), initially 1: without GPUs,
/// strategies made or configured without `devices` have a tower on each.
LOCKSTEP_EXPORT void set_logical_cpus(int n);

/// Options of `configure`.
struct ConfigureOptions {
  std::any session_config = {};  ///< there are no sessions: accepted and ignored
  /// The workers: chief tasks, then worker tasks by number. Unset: only this process, and nothing changes.
  std::optional<ClusterSpec> cluster_spec = {};
  /// Which of them this process is. Unset: the "task" of the environment variable TF_CONFIG.
  std::optional<std::string> task_type = {};
  std::optional<int> task_id = {};  ///< its number within the job
  /// The devices of each worker, in place of the constructor's number of GPUs: `ls::cpus(4)` for four towers.
  std::optional<std::vector<std::string>> devices = {};
  double join_seconds = 300;  ///< how long to wait for the other workers
};

/// MirroredStrategy of TensorFlow 1.11: the same towers on one machine, or, after `configure`, on all workers of a cluster.
///
///     contrib::MirroredStrategy strategy({.num_gpus = 0});
///     strategy.configure({.cluster_spec = cluster, .task_type = "worker", .task_id = 1, .devices = ls::cpus(4)});
class LOCKSTEP_EXPORT MirroredStrategy : public DistributionStrategy {
 public:
  explicit MirroredStrategy(MirroredOptions options = {});

  /// Joins the other workers of a cluster, which make the same call; returns when all have. There are then workers x
  /// max(logical CPUs, GPUs) towers, or workers x devices. Call it first, outside of scopes: objects made earlier with
  /// the strategy, such as variables, do not belong to the cluster. Requires Lockstep's component `cluster`.
  void configure(const ConfigureOptions& options = {});

 private:
  MirroredOptions options_;
};

/// CollectiveAllReduceStrategy of TensorFlow 1.11, from which MultiWorkerMirroredStrategy evolved: as MirroredStrategy,
/// except that each worker reads its own data, which the program divides. Until `configure` it is one worker.
class LOCKSTEP_EXPORT CollectiveAllReduceStrategy final : public MirroredStrategy {
 public:
  explicit CollectiveAllReduceStrategy(int num_gpus_per_worker = 0)
      : MirroredStrategy({.num_gpus_per_worker = num_gpus_per_worker}) {}
  bool between_graph() const override { return true; }
};

}  // namespace lockstep::contrib
