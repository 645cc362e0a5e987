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
  /// Describes the workers, and says which of them this process is. Unset: the environment variable TF_CONFIG does.
  std::shared_ptr<const ClusterResolver> cluster_resolver = {};
  /// Defaults for all collectives. One that takes longer than `timeout_seconds` (ten minutes if unset; 0: no limit) fails on
  /// all workers.
  CommunicationOptions communication = {};
  /// Threads that one replica uses inside an operation. Unset: the cores of this machine, divided among the replicas of all
  /// workers on it. The last bits of results depend on it, so all workers must have the same number.
  std::optional<int> intra_op_threads = {};
  /// Like calling `torch::manual_seed` here. Unset: the chief's last call counts. See docs/training.md, Reproducibility.
  std::optional<std::uint64_t> seed = {};
  /// Refuses calls after which the components of a mirrored variable could differ without an error.
  bool strict = false;
  /// As in MirroredOptions.
  std::optional<bool> keep_memory = {};
  std::optional<bool> fast_kernels = {};  ///< as in MirroredOptions
  bool deterministic = false;             ///< as in MirroredOptions
  /// How long the constructor waits for the other workers.
  double join_seconds = 300;
  /// Where data from other workers arrives. Unset: a free port on the address of this worker's entry.
  std::string bind_address = {};
  int data_port = 0;  ///< the port for `bind_address`; 0: any free one
  /// Encrypts what goes to and from the chief, but not tensors. Unset: the files that the environment variables
  /// LOCKSTEP_TLS_AUTHORITY, LOCKSTEP_TLS_CERTIFICATE and LOCKSTEP_TLS_KEY name, or no TLS.
  TlsFiles tls = {};
};

/// Synchronous training by several processes, usually on several machines: every process ("worker") runs the same program
/// with the same replicas, and each step uses the gradients of all. Without a cluster (no TF_CONFIG) it is one worker.
///
///     ls::MultiWorkerMirroredStrategy strategy({.devices = ls::cpus(2)});
///
/// Training on several workers needs Lockstep's component `cluster`. The constructor returns when all workers have joined.
/// The results are the same bits as those of one worker with as many replicas. If a worker dies or fails, all others get an
/// error that says who and why, and their weights are those of the last whole step.
class LOCKSTEP_EXPORT MultiWorkerMirroredStrategy final : public Strategy {
 public:
  explicit MultiWorkerMirroredStrategy(MultiWorkerOptions options = {});
  ~MultiWorkerMirroredStrategy() override;

  /// Who the workers are, and what this one has to do besides training. Include <lockstep/cluster.h>.
  const ClusterDescription& cluster() const { return *cluster_; }
  /// Who this worker is, and how data travels to the others: two lines for people.
  std::string describe() const override;

 private:
  struct Plan;
  explicit MultiWorkerMirroredStrategy(std::unique_ptr<const Plan> plan);

  std::unique_ptr<const ClusterDescription> cluster_;
};

}  // namespace lockstep
