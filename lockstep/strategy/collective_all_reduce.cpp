#include "lockstep/strategy/collective_all_reduce.h"

#include "lockstep/base/text.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep {

Mirrored<at::Tensor> CollectiveAllReduce::reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                                 const Devices& destinations, const CommunicationOptions& options) {
  return broadcast(workers::all_reduce(*group_, op, value.values(), "reduce", options), destinations);
}

Mirrored<IndexedSlices> CollectiveAllReduce::reduce_slices(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                                           const Devices& destinations,
                                                           const CommunicationOptions& options) {
  const PerReplica<IndexedSlices> all(
      workers::all_gather(*group_, value.values(), "reduce of sparse rows", deadline_of(options)));
  return OrderedCrossDeviceOps::reduce_slices(op, all, destinations, options);
}

Mirrored<at::Tensor> CollectiveAllReduce::gather(const PerReplica<at::Tensor>& value, std::int64_t axis,
                                                 const Devices& destinations, const CommunicationOptions& options) {
  const PerReplica<at::Tensor> all(
      workers::all_gather(*group_, value.values(), str("gather along ", axis), deadline_of(options)));
  return OrderedCrossDeviceOps::gather(all, axis, destinations, options);
}

}  // namespace lockstep
