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

/// Moves values between the devices of a strategy. Derive from it for special hardware or for experiments and pass it
/// to a strategy, which then calls it for `reduce`, `all_reduce` and aggregated assignments:
///
///     struct Counting : ls::CrossDeviceOps {
///       ls::Mirrored<torch::Tensor> reduce(ls::ReduceOp op, const ls::PerReplica<torch::Tensor>& value,
///                                          const ls::Devices& to, const ls::CommunicationOptions&) override { ... }
///     };
///     ls::MirroredStrategy strategy({.devices = ls::cpus(2), .cross_device_ops = std::make_shared<Counting>()});
///
/// Methods are called by one thread at a time, the one that calls the strategy. The result has one component per
/// destination device, in their order. Only `reduce` must be implemented; the defaults of the others call it or need no
/// arithmetic.
class LOCKSTEP_EXPORT CrossDeviceOps {
 public:
  /// A value and the destinations of its reduction.
  using Job = std::pair<PerReplica<at::Tensor>, Devices>;

  virtual ~CrossDeviceOps();

  /// The sum or mean of the components, which have equal shapes and dtypes; MEAN of integers is the true quotient.
  virtual Mirrored<at::Tensor> reduce(ReduceOp op, const PerReplica<at::Tensor>& value, const Devices& destinations,
                                      const CommunicationOptions& options) = 0;

  /// Several reductions at once; the default runs them one by one.
  virtual std::vector<Mirrored<at::Tensor>> batch_reduce(ReduceOp op, const std::vector<Job>& jobs,
                                                         const CommunicationOptions& options);

  /// Concatenates sparse rows in replica order, without adding any; MEAN divides the values.
  virtual Mirrored<IndexedSlices> reduce_slices(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                                const Devices& destinations, const CommunicationOptions& options);

  /// One copy per destination.
  virtual Mirrored<at::Tensor> broadcast(const at::Tensor& value, const Devices& destinations);

  /// The components, concatenated along `axis` in replica order.
  virtual Mirrored<at::Tensor> gather(const PerReplica<at::Tensor>& value, std::int64_t axis,
                                      const Devices& destinations, const CommunicationOptions& options);

  /// Whether replicas may do this reduction themselves, concurrently, instead of through `reduce`. True for Lockstep's
  /// own operations, which add in the same order wherever they run; leave it false in yours.
  virtual bool is_one_order() const { return false; }
};

/// Base of Lockstep's own operations. All of them add in the same order (comm/reduction_tree.h) and so give the same
/// bits; they differ in which tensors of a batch travel together.
class LOCKSTEP_EXPORT OrderedCrossDeviceOps : public CrossDeviceOps {
 public:
  /// A batch travels in `num_packs` packs of equal length; 0: each tensor by itself. Unset: packs of about
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

/// TensorFlow's operation for machines whose GPUs are linked in two halves. Here it is the ordered sum in `num_packs`
/// packs, since CPU replicas share one memory and need no copies.
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

/// The default of a strategy: the ordered sum, computed by the replicas' own threads if possible.
LOCKSTEP_EXPORT std::shared_ptr<CrossDeviceOps> default_cross_device_ops();

}  // namespace lockstep
