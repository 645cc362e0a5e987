#pragma once

#include <vector>

#include "lockstep/nn/step/gradient_reducer.h"

namespace lockstep::detail {

/// Sums the gradients of replicas that share memory, segment by segment, in place: without flat copies. The owner of a
/// segment writes the sum, in the one order of comm/reduction_tree.h, over its own gradient. Gradients on GPUs out of
/// its reach, and between CPUs and GPUs, are copied first.
class SharedMemoryReducer final : public GradientReducer {
 public:
  SharedMemoryReducer(const ModuleCore& module, const std::vector<int>& group_of, const Replicas& replicas);

  void reduce(ReplicaPart& mine, ReduceOp op) override;

 private:
  bool leave_to_update(ReplicaPart& mine, OwnedSegment& segment) const;
  void list_parts(ReplicaPart& mine, const Segment& segment, std::vector<const float*>& parts) const;
  /// A replica without a gradient counts as zero.
  void sum_dense(ReplicaPart& mine, const Segment& segment, at::Tensor& target, ReduceOp op) const;
  /// All rows in replica order, with equal ones summed in that order.
  at::Tensor sum_sparse(const ReplicaPart& mine, std::size_t parameter) const;
  NonFiniteSum find_not_finite(const OwnedSegment& segment, int owner) const;

  const bool on_gpus_;
};

}  // namespace lockstep::detail
