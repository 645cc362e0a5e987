#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/function_ref.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/kernels/replica_kernels.h"
#include "lockstep/strategy/replica_random.h"
#include "lockstep/strategy/thread_counts.h"

namespace lockstep {

/// What the replicas of one process are made of.
struct LocalReplicasOptions {
  int replicas = 1;                      ///< of this process
  int first_id = 0;                      ///< of the first of them, among those of all workers
  int all_replicas = 1;                  ///< of all workers
  int on_this_host = 1;                  ///< replicas that share the cores of this machine
  std::vector<at::Device> devices = {};  ///< of each of them
  std::optional<int> intra_op_threads = {};
  std::uint64_t seed = 0;
  std::optional<bool> keep_memory = {};
  std::optional<bool> fast_kernels = {};
};

/// Threads that one replica uses inside an operation: as asked for, or its share of what LibTorch would use.
int plan_intra_op_threads(const std::optional<int>& wanted, int replicas_on_this_host);

/// The replicas of this process: a thread each, with its own random numbers, number of threads and kernels, and on a GPU its own
/// stream. A replica that is the only one of all workers draws from LibTorch's own generators, as a plain program does.
class LocalReplicas {
 public:
  explicit LocalReplicas(const LocalReplicasOptions& options);

  int threads() const { return threads_; }
  std::uint64_t seed() const { return are_several_ ? seed_ : shared_generator_seed(); }
  /// All replicas draw from now on what they would draw if they had been made with `seed`, which LibTorch's own generators have
  /// been given already.
  void set_seed(std::uint64_t seed);

  /// Of each replica.
  const std::vector<ReplicaGenerators>& generators() const { return generators_; }
  /// The generators were given the states of streams that had begun with `seed`.
  void note_restored_streams(std::uint64_t seed);

  /// For recording runs of these replicas; null unless all are on one GPU.
  std::shared_ptr<gpu::Graph> make_graph() const;

  /// Calls `body(k, seat)` once per replica, each on its thread, with the caller's thread-local state. Returns what went
  /// wrong on them. Throws if the shared generator was seeded meanwhile and several replicas had to share it.
  std::optional<local::ReplicaFailure> run(FunctionRef<void(int local_index, local::Seat* seat)> body);

 private:
  std::optional<local::ReplicaFailure> run_team(FunctionRef<void(int, local::Seat*)> body);
  std::optional<local::ReplicaFailure> run_watching_seeds(FunctionRef<void(int, local::Seat*)> body);

  int threads_;
  int first_id_;
  std::uint64_t seed_;
  int times_seeded_ = 0;            ///< by set_seed
  bool has_run_ = false;            ///< some numbers of the streams of seed_ may be gone
  bool is_seeded_in_vain_ = false;  ///< LibTorch's generator, since the replicas last drew
  bool has_warned_of_seed_ = false;
  bool are_several_;
  OwnKernels own_kernels_;
  ThreadsOfMaker threads_of_maker_;
  std::vector<at::Device> devices_;  ///< of each replica
  std::vector<ReplicaGenerators> generators_;
  std::unique_ptr<gpu::ReplicaStreams> streams_;  ///< null on CPU
  local::ReplicaTeam team_;
};

}  // namespace lockstep
