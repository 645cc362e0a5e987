#pragma once

#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/strategy/cross_device_ops.h"

namespace lockstep::contrib {

/// How values are sent between towers; a strategy accepts any of them as `cross_tower_ops`. Lockstep's own sum in one
/// order and give the same bits; see CrossDeviceOps to write your own.
using CrossTowerOps = CrossDeviceOps;

/// Takes `reduce_to_device` and `accumulate`, as in TensorFlow.
using ReductionToOneDeviceCrossTowerOps = ReductionToOneDevice;

/// `all_reduce_alg` is "nccl" or "hierarchical_copy". With `num_packs` the tensors of a batch are sent in so many
/// packs. The last two arguments, which combine small gradients in TensorFlow, are checked and have no effect: packs do
/// it.
class LOCKSTEP_EXPORT AllReduceCrossTowerOps final : public OrderedCrossDeviceOps {
 public:
  explicit AllReduceCrossTowerOps(const std::string& all_reduce_alg = "nccl", int num_packs = 1,
                                  int agg_small_grads_max_bytes = 0, int agg_small_grads_max_group = 10);
};

/// TensorFlow's specification of an all-reduce between workers: algorithm, shards, and the size limit for its use.
struct AllReduceSpecTuple {
  std::string alg = "pscpu/pscpu";  ///< the name of an algorithm of TensorFlow's
  int shards = 2;                   ///< into how many parts large gradients are cut
  int limit = -1;                   ///< gradients up to so many bytes; -1: all
};

/// For towers of several workers. Lockstep's engine always sums in the one order, whatever `all_reduce_spec` is; this
/// class exists for programs that name it.
class LOCKSTEP_EXPORT MultiWorkerAllReduce final : public OrderedCrossDeviceOps {
 public:
  MultiWorkerAllReduce(const std::vector<std::string>& worker_devices, int num_gpus_per_worker,
                       const AllReduceSpecTuple& all_reduce_spec = {}, int num_packs = 0);
};

}  // namespace lockstep::contrib
