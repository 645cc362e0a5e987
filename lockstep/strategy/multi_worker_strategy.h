#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/tls_files.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep {

class ClusterResolver;      // lockstep/cluster.h
struct ClusterDescription;  // lockstep/cluster.h

/// Options of a MultiWorkerMirroredStrategy.
struct MultiWorkerOptions {
  /// One replica of this worker per device: `ls::cpus(2)`. Unset: every GPU of this worker, or one CPU replica. All workers
  /// must have the same number.
  std::optional<std::vector<std::string>> devices = {};
  /// Describes the workers and which of them this process is. Unset: taken from the environment variable TF_CONFIG.
  std::shared_ptr<const ClusterResolver> cluster_resolver = {};
  /// Default options of all collectives. A collective that takes longer than `timeout_seconds` (unset: ten minutes; 0:
  /// no limit) fails on all workers.
  CommunicationOptions communication = {};
  /// Number of threads that one replica uses inside an operation. Unset: the cores of this machine, divided among the
  /// replicas of all workers on it. The last bits of results depend on it, so it must be the same on all workers.
  std::optional<int> intra_op_threads = {};
  /// Same as calling `torch::manual_seed` here. Unset: the chief's last call counts. See docs/training.md,
  /// Reproducibility.
  std::optional<std::uint64_t> seed = {};
  /// Refuse calls after which the components of a mirrored variable could differ unnoticed.
  bool strict = false;
  /// As in MirroredOptions.
  std::optional<bool> keep_memory = {};
  std::optional<bool> fast_kernels = {};  ///< as in MirroredOptions
  bool deterministic = false;             ///< as in MirroredOptions
  /// How long the constructor waits for the other workers.
  double join_seconds = 300;
  /// Address on which data from other workers arrives. Unset: a free port on the address of this worker's entry.
  std::string bind_address = {};
  int data_port = 0;  ///< the port for `bind_address`; 0: any free one
  /// Encrypts traffic to and from the chief, but not tensors. Unset: the files named by the environment variables
  /// LOCKSTEP_TLS_AUTHORITY, LOCKSTEP_TLS_CERTIFICATE and LOCKSTEP_TLS_KEY, or no TLS.
  TlsFiles tls = {};
};

/// Synchronous training by several processes, usually on several machines: every process ("worker") runs the same
/// program with the same number of replicas, and each step uses all gradients. Without a cluster (no TF_CONFIG) there
/// is one worker.
///
///     ls::MultiWorkerMirroredStrategy strategy({.devices = ls::cpus(2)});
///
/// Training on several workers needs Lockstep's component `cluster`. The constructor returns when all workers have
/// joined. Results are bitwise equal to one worker's with as many replicas. If a worker dies or fails, all others get
/// an error that names the worker and the reason, and their weights are those after the last complete step.
class LOCKSTEP_EXPORT MultiWorkerMirroredStrategy final : public Strategy {
 public:
  explicit MultiWorkerMirroredStrategy(MultiWorkerOptions options = {});
  ~MultiWorkerMirroredStrategy() override;

  /// Describes the workers, and this worker's tasks apart from training. Include <lockstep/cluster.h>.
  const ClusterDescription& cluster() const { return *cluster_; }
  /// Describes this worker and how data travels to the others, in two lines for people.
  std::string describe() const override;

 private:
  struct Plan;
  explicit MultiWorkerMirroredStrategy(std::unique_ptr<const Plan> plan);

  std::unique_ptr<const ClusterDescription> cluster_;
};

}  // namespace lockstep
