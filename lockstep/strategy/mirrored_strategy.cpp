#include "lockstep/strategy/mirrored_strategy.h"

#include "lockstep/strategy/local_replicas.h"
#include "lockstep/strategy/replica_random.h"

namespace lockstep {
namespace {

std::vector<DeviceName> plan_devices(const MirroredOptions& options) {
  auto devices = plan_mirrored_devices(devices_or_default(options.devices));
  for (const auto& device : devices) require_here(device);
  require_way_between(devices, options.communication.implementation);
  return devices;
}

}  // namespace

MirroredStrategy::MirroredStrategy(MirroredOptions options)
    : Strategy({.devices = plan_devices(options),
                .cross_device_ops = options.cross_device_ops,
                .communication = options.communication,
                .strict = options.strict}) {
  make_replicas({.on_this_host = num_local_replicas(),
                 .intra_op_threads = options.intra_op_threads,
                 .seed = seed_shared_generators(options.seed),
                 .keep_memory = options.keep_memory,
                 .fast_kernels = options.fast_kernels},
                options.deterministic);
}

std::shared_ptr<gpu::Graph> MirroredStrategy::make_graph() { return replicas_->make_graph(); }

}  // namespace lockstep
