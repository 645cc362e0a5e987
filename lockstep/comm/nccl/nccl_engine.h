#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/comm/engine/collective.h"
#include "lockstep/comm/nccl/connection.h"
#include "lockstep/comm/nccl/sum_schedule.h"

namespace lockstep::nccl {

struct EngineOptions {
  ConnectionOptions connection;
  int replicas = 1;         ///< replicas of each worker
  double call_seconds = 0;  ///< time limit of a collective that names none; 0: none
};

/// Collectives between the GPUs of several workers, through the first of each. Sums have the order of reduction_tree.h
/// over all replicas, like other engines' sums: partial sums go to the owner of each shard, and its result to all. With
/// Implementation::Nccl they are NCCL's own, in its order.
///
/// The arrays of a collective are on that GPU; inputs of sums may be on any that it reaches. All workers start the same
/// ones in the same order, which the caller must have compared. After an error (connection.h) arrays are in an unknown
/// state.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);

  /// Whether sums over this many workers and replicas fit into the kernel.
  static bool takes(int workers, int replicas);

  /// Enqueues a collective on `stream` and returns. `allocate` returns memory that stays valid until the stream has
  /// used it.
  void start(const Collective& collective, cudaStream_t stream, FunctionRef<void*(std::size_t bytes)> allocate,
             Deadline limit = Deadline::by_default());
  /// Waits until all started work is done.
  void wait() { connection_.wait(); }

 private:
  struct Call;

  void put(Call& call);
  void sum(Call& call);
  void sum_by_nccl(const Call& call);
  void gather(const Call& call);
  void add(const std::vector<Addition>& additions, const Call& call);
  void exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives, const Call& call);
  void finish(int result, const Call& call);

  const int rank_, workers_, replicas_;
  const double call_seconds_;
  const engine::SumPlan plan_;
  Connection connection_;
};

}  // namespace lockstep::nccl
