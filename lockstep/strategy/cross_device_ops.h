#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/communication_options.h"
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
/// destination device, in their order. Only `reduce` must be written; the others have defaults that call it or need no
/// arithmetic.
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

  /// The components, concatenated along `axis` in replica order.
  virtual Mirrored<at::Tensor> gather(const PerReplica<at::Tensor>& value, std::int64_t axis,
                                      const Devices& destinations, const CommunicationOptions& options);

  /// Whether replicas may do this reduction themselves, at the same time, instead of through `reduce`. True for
  /// Lockstep's own operations, which add in one order wherever they run; leave it false in yours.
  virtual bool is_one_order() const { return false; }
};

/// Lockstep's own operations. All of them add in the one order of summation (comm/reduction_tree.h), so they give the
/// same bits; they differ in which tensors of a batch travel together.
class LOCKSTEP_EXPORT OrderedCrossDeviceOps : public CrossDeviceOps {
 public:
  /// A batch travels in `num_packs` packs of equal length; 0: each tensor by itself. Unset: in packs of about
  /// CommunicationOptions::bytes_per_pack.
  explicit OrderedCrossDeviceOps(std::optional<int> num_packs = {});

  Mirrored<at::Tensor> reduce(ReduceOp op, const PerReplica<at::Tensor>& value, const Devices& destinations,
                              const CommunicationOptions& options) override;
  std::vector<Mirrored<at::Tensor>> batch_reduce(ReduceOp op, const std::vector<Job>& jobs,
                                                 const CommunicationOptions& options) override;
  bool is_one_order() const override { return true; }

 private:
  std::optional<int> num_packs_;
};

/// Copies all components to one device, adds them there and copies the sum to the destinations.
class LOCKSTEP_EXPORT ReductionToOneDevice final : public OrderedCrossDeviceOps {
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

/// TensorFlow's operation for machines whose GPUs are linked in two halves. CPU replicas share one memory, so there is
/// nothing to copy: the sum is the ordered one, in `num_packs` packs.
class LOCKSTEP_EXPORT HierarchicalCopyAllReduce final : public OrderedCrossDeviceOps {
 public:
  explicit HierarchicalCopyAllReduce(int num_packs = 1) : OrderedCrossDeviceOps(num_packs) {}
};

/// NCCL between GPUs. On CPU devices it is the ordered sum in `num_packs` packs, with one warning.
class LOCKSTEP_EXPORT NcclAllReduce final : public OrderedCrossDeviceOps {
 public:
  explicit NcclAllReduce(int num_packs = 1) : OrderedCrossDeviceOps(num_packs) {}

  Mirrored<at::Tensor> reduce(ReduceOp op, const PerReplica<at::Tensor>& value, const Devices& destinations,
                              const CommunicationOptions& options) override;
};

/// What a strategy uses when nothing is asked for: the ordered sum, made by the replicas' own threads where they can.
LOCKSTEP_EXPORT std::shared_ptr<CrossDeviceOps> default_cross_device_ops();

}  // namespace lockstep
