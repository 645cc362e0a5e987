#include "lockstep/strategy/mirrored_strategy.h"

#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/local_replicas.h"
#include "lockstep/strategy/replica_random.h"

namespace lockstep {
namespace {

std::vector<DeviceName> plan_devices(const MirroredOptions& options) {
  auto devices = plan_mirrored_devices(options.devices.value_or(local_devices(visible_gpus())));
  for (const auto& device : devices) require_here(device);
  require_way_between(devices, options.communication.implementation);
  return devices;
}

std::vector<at::Device> devices_of_replicas(Strategy& strategy) {
  std::vector<at::Device> devices;
  for (int k = 0; k < strategy.num_local_replicas(); ++k) devices.push_back(strategy.replica_context(k).device());
  return devices;
}

}  // namespace

MirroredStrategy::MirroredStrategy(MirroredOptions options)
    : Strategy({.devices = plan_devices(options),
                .cross_device_ops = options.cross_device_ops,
                .communication = options.communication,
                .strict = options.strict}),
      replicas_(std::make_unique<LocalReplicas>(
          LocalReplicasOptions{.replicas = num_local_replicas(),
                               .all_replicas = num_local_replicas(),
                               .on_this_host = num_local_replicas(),
                               .devices = devices_of_replicas(*this),
                               .intra_op_threads = options.intra_op_threads,
                               .seed = options.seed ? *options.seed : shared_generator_seed(),
                               .keep_memory = options.keep_memory,
                               .fast_kernels = options.fast_kernels})) {
  if (options.deterministic && detail::StrategyAccess::has_gpus(*this)) gpu::use_deterministic_algorithms();
}

MirroredStrategy::~MirroredStrategy() = default;

int MirroredStrategy::intra_op_threads() const { return replicas_->threads(); }
std::uint64_t MirroredStrategy::seed() const { return replicas_->seed(); }
void MirroredStrategy::start_random_numbers(std::uint64_t seed) { replicas_->set_seed(seed); }

std::shared_ptr<gpu::Graph> MirroredStrategy::make_graph() { return replicas_->make_graph(); }

void MirroredStrategy::run_replicas(FunctionRef<void(int, local::Seat*)> body) {
  if (const auto failure = replicas_->run(body)) raise_failure(*failure);
}

}  // namespace lockstep
