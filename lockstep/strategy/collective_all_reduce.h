#pragma once

#include <memory>

#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/cross_device_ops.h"

namespace lockstep {

/// Reductions in cross-replica context over the replicas of all workers: each worker calls with the components of its own
/// replicas. What only copies (`broadcast`) stays on the worker.
class CollectiveAllReduce final : public OrderedCrossDeviceOps {
 public:
  explicit CollectiveAllReduce(std::shared_ptr<WorkerGroup> group) : group_(std::move(group)) {}

  Mirrored<at::Tensor> reduce(ReduceOp op, const PerReplica<at::Tensor>& value, const Devices& destinations,
                              const CommunicationOptions& options) override;
  Mirrored<IndexedSlices> reduce_slices(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                        const Devices& destinations, const CommunicationOptions& options) override;
  Mirrored<at::Tensor> gather(const PerReplica<at::Tensor>& value, std::int64_t axis, const Devices& destinations,
                              const CommunicationOptions& options) override;

 private:
  std::shared_ptr<WorkerGroup> group_;
};

}  // namespace lockstep
