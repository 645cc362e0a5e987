#include "lockstep/contrib/cross_tower_ops.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::contrib {
namespace {

void require_at_least_zero(const char* name, int value) {
  if (value >= 0) return;
  throw InvalidArgument(errors::kBadOption,
                        {.what = str(name, " must be >= 0, got ", value), .help = str("leave out ", name)});
}

}  // namespace

AllReduceCrossTowerOps::AllReduceCrossTowerOps(const std::string& all_reduce_alg, int num_packs,
                                               int agg_small_grads_max_bytes, int agg_small_grads_max_group)
    : OrderedCrossDeviceOps(num_packs) {
  if (all_reduce_alg != "nccl" && all_reduce_alg != "hierarchical_copy") {
    throw InvalidArgument(errors::kBadOption, {.what = str("all_reduce_alg must be \"nccl\" or \"hierarchical_copy\", ",
                                                           "got \"", all_reduce_alg, "\""),
                                               .help = "write AllReduceCrossTowerOps(\"hierarchical_copy\")"});
  }
  require_at_least_zero("agg_small_grads_max_bytes", agg_small_grads_max_bytes);
  require_at_least_zero("agg_small_grads_max_group", agg_small_grads_max_group);
}

MultiWorkerAllReduce::MultiWorkerAllReduce(const std::vector<std::string>& worker_devices, int num_gpus_per_worker,
                                           const AllReduceSpecTuple&, int num_packs)
    : OrderedCrossDeviceOps(num_packs) {
  require_at_least_zero("num_gpus_per_worker", num_gpus_per_worker);
  if (worker_devices.empty()) {
    throw InvalidArgument(errors::kDevice, {.what = "worker_devices must name at least one worker, got none",
                                            .help = "name the workers: {\"/job:worker/task:0\"}"});
  }
}

}  // namespace lockstep::contrib
