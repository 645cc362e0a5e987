#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/cross_device_plan.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/values/indexed_slices.h"
#include "lockstep/values/per_replica.h"

namespace lockstep {

/// How values travel between the devices of a strategy. Derive from it for special hardware or for experiments and
/// give it to a strategy; it is then called for `reduce`, `all_reduce` and aggregated assignments:
///
///     struct Counting : ls::CrossDeviceOps {
///       ls::Mirrored<torch::Tensor> reduce(ls::ReduceOp op, const ls::PerReplica<torch::Tensor>& value,
///                                          const ls::Devices& to, const ls::CommunicationOptions&) override { ... }
///     };
///     ls::MirroredStrategy strategy({.devices = ls::cpus(2), .cross_device_ops = std::make_shared<Counting>()});
///
/// Methods are called by one thread at a time, the one that calls the strategy. The result has one component per
/// destination device, in their order. Only `reduce` must be written; the others have defaults that rest on it or need
/// no arithmetic.
class LOCKSTEP_EXPORT CrossDeviceOps {
 public:
  /// A value and where its reduction goes.
  using Job = std::pair<PerReplica<at::Tensor>, Devices>;

  virtual ~CrossDeviceOps();

  /// The sum or mean of the components. They have equal shapes and dtypes; MEAN of integers is the true quotient.
  virtual Mirrored<at::Tensor> reduce(ReduceOp op, const PerReplica<at::Tensor>& value, const Devices& destinations,
                                      const CommunicationOptions& options) = 0;

  /// Several reductions at once; the default does one after the other.
  virtual std::vector<Mirrored<at::Tensor>> batch_reduce(ReduceOp op, const std::vector<Job>& jobs,
                                                         const CommunicationOptions& options);

  /// Sparse rows: all rows in replica order, nothing added up; MEAN divides the values.
  virtual Mirrored<IndexedSlices> reduce_slices(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                                const Devices& destinations, const CommunicationOptions& options);

  /// One copy per destination.
  virtual Mirrored<at::Tensor> broadcast(const at::Tensor& value, const Devices& destinations);

  /// The components one behind the other along `axis`, in replica order.
  virtual Mirrored<at::Tensor> gather(const PerReplica<at::Tensor>& value, std::int64_t axis,
                                      const Devices& destinations, const CommunicationOptions& options);

  /// Whether replicas may do this reduction themselves, at the same time, instead of through `reduce`. True for our own
  /// operations, whose result is the one order of summation wherever it is computed; leave it false in yours.
  virtual bool is_one_order() const { return false; }
};

/// Our own operations: one class, a plan each. The plans say where sums are made; the order of summation, and with it
/// every bit of the result, is the same for all of them.
class LOCKSTEP_EXPORT PlannedCrossDeviceOps : public CrossDeviceOps {
 public:
  PlannedCrossDeviceOps(Algorithm algorithm, int num_packs);

  Mirrored<at::Tensor> reduce(ReduceOp op, const PerReplica<at::Tensor>& value, const Devices& destinations,
                              const CommunicationOptions& options) override;
  std::vector<Mirrored<at::Tensor>> batch_reduce(ReduceOp op, const std::vector<Job>& jobs,
                                                 const CommunicationOptions& options) override;
  bool is_one_order() const override { return true; }

  Algorithm algorithm() const { return algorithm_; }
  int num_packs() const { return num_packs_; }

 private:
  Algorithm algorithm_;
  int num_packs_;
};

/// Copies all components to one device, adds them there and copies the sum to the destinations.
class LOCKSTEP_EXPORT ReductionToOneDevice final : public PlannedCrossDeviceOps {
 public:
  /// Adds a list of tensors; the default is the ordered sum.
  using Accumulate = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

  explicit ReductionToOneDevice(std::string reduce_to_device = "", Accumulate accumulate = {});

  Mirrored<at::Tensor> reduce(ReduceOp op, const PerReplica<at::Tensor>& value, const Devices& destinations,
                              const CommunicationOptions& options) override;
  bool is_one_order() const override { return !accumulate_; }

 private:
  std::string reduce_to_device_;
  Accumulate accumulate_;
};

/// Two groups of devices add up on a main device each; for machines whose GPUs are linked in two halves.
class LOCKSTEP_EXPORT HierarchicalCopyAllReduce final : public PlannedCrossDeviceOps {
 public:
  explicit HierarchicalCopyAllReduce(int num_packs = 1)
      : PlannedCrossDeviceOps(Algorithm::HierarchicalCopy, num_packs) {}
};

/// NCCL between GPUs. On CPU devices it falls back to the ordered sum, with one warning.
class LOCKSTEP_EXPORT NcclAllReduce final : public PlannedCrossDeviceOps {
 public:
  explicit NcclAllReduce(int num_packs = 1) : PlannedCrossDeviceOps(Algorithm::Nccl, num_packs) {}
};

/// What a strategy uses when nothing is asked for: the ordered sum, made by the replicas' own threads where they can.
LOCKSTEP_EXPORT std::shared_ptr<CrossDeviceOps> default_cross_device_ops();

}  // namespace lockstep
