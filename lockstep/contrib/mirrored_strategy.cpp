#include "lockstep/contrib/mirrored_strategy.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <atomic>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cluster.h"
#include "lockstep/strategy/mirrored_strategy.h"

namespace lockstep::contrib {
namespace {

[[noreturn]] void refuse(std::string what, std::string help) {
  throw InvalidArgument(errors::kBadOption, {.what = std::move(what), .help = std::move(help)});
}

std::atomic<int> logical_cpus{1};

std::vector<std::string> devices_of_gpus(std::optional<int> wanted) {
  if (wanted && *wanted < 0) refuse(str("num_gpus must be >= 0, got ", *wanted), "pass 0 for towers on the CPU");
  const int gpus = wanted.value_or(visible_gpus());
  return gpus == 0 ? cpus(logical_cpus) : local_devices(gpus);
}

MirroredOptions checked(MirroredOptions options) {
  if (options.num_gpus && options.num_gpus_per_worker)
    refuse("you cannot specify both num_gpus and num_gpus_per_worker", "pass only num_gpus");
  if (options.devices && (options.num_gpus || options.num_gpus_per_worker))
    refuse("Must only specify one of `devices` and `num_gpus`", "pass only the list of devices, or only num_gpus");
  if (!options.num_gpus) options.num_gpus = options.num_gpus_per_worker;
  return options;
}

/// The name of each tower's device: this worker's names, repeated for each worker.
Devices devices_of_all(const MultiWorkerMirroredStrategy& core) {
  if (core.cluster().is_local()) return core.devices();
  Devices all;
  for (const WorkerEntry& worker : core.cluster().workers) {
    for (const std::string& device : core.devices()) {
      DeviceName name = parse_device(device);
      name.job = worker.task_type;
      name.task = worker.task_index;
      all.push_back(to_string(name));
    }
  }
  return all;
}

std::unique_ptr<MultiWorkerMirroredStrategy> join(const ConfigureOptions& options, const MirroredOptions& made_with) {
  const detail::TowerWords words;
  const TFConfigClusterResolver environment;
  const SimpleClusterOptions task{
      .task_type = options.task_type ? options.task_type : environment.task_type(),
      .task_id = options.task_id ? std::optional<std::int64_t>(*options.task_id) : environment.task_id()};
  return std::make_unique<MultiWorkerMirroredStrategy>(
      MultiWorkerOptions{.devices = options.devices ? *options.devices : devices_of_gpus(made_with.num_gpus),
                         .cluster_resolver = std::make_shared<SimpleClusterResolver>(*options.cluster_spec, task),
                         .intra_op_threads = made_with.intra_op_threads,
                         .seed = made_with.seed,
                         .strict = true,
                         .join_seconds = options.join_seconds});
}

/// There is one client: its draws outside of towers are the same on every worker.
void draw_like_the_chief(Strategy& core) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor state;
  {
    const std::lock_guard lock(generator.mutex());
    state = generator.get_state();
  }
  state = core.broadcast(state);  // without the lock: it waits for the other workers
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

void set_logical_cpus(int n) {
  if (n < 1) refuse(str("the number of logical CPUs must be >= 1, got ", n), "set_logical_cpus(1) is the default");
  logical_cpus = n;
}

MirroredStrategy::MirroredStrategy(MirroredOptions options) : options_(checked(std::move(options))) {
  set_prefetch_on_device(options_.prefetch_on_device.value_or(true));
  const detail::TowerWords words;
  auto core = std::make_unique<lockstep::MirroredStrategy>(
      lockstep::MirroredOptions{.devices = options_.devices ? *options_.devices : devices_of_gpus(options_.num_gpus),
                                .cross_device_ops = options_.cross_tower_ops,
                                .intra_op_threads = options_.intra_op_threads,
                                .seed = options_.seed,
                                .strict = true});
  Devices devices = core->devices();
  set_core(std::move(core), std::move(devices));
}

void MirroredStrategy::configure(const ConfigureOptions& options) {
  if (!options.cluster_spec || options.cluster_spec->empty()) {
    if (options.devices)
      refuse("`devices` of configure are each worker's in a cluster, but there is no `cluster_spec`",
             "pass the devices to the constructor of MirroredStrategy");
    return;
  }
  if (has_strategy())
    throw FailedPrecondition(errors::kWrongContext, {.what = "configure was called inside a scope or a tower",
                                                     .where = "configure",
                                                     .help = "call it right after making the strategy"});
  if (is_used() || core().num_workers() > 1) {
    throw FailedPrecondition(
        errors::kWrongContext,
        {.what = is_used() ? "configure was called after the strategy was used" : "configure was called a second time",
         .where = "configure",
         .help = "call it once, right after making the strategy: towers, datasets and variables from before would not "
                 "belong to the cluster"});
  }
  if (options_.devices && !options.devices)
    refuse("`num_gpus` is required if `cluster_spec` is given, and the strategy was made with `devices`",
           "make it with .num_gpus, or pass each worker's .devices to configure");
  if (options_.cross_tower_ops && !options_.cross_tower_ops->is_one_order())
    throw Unimplemented(errors::kNotAvailable,
                        {.what = "cross_tower_ops of your own cannot add up over the workers of a cluster",
                         .help = "leave out cross_tower_ops: the workers' engine adds in the one order"});
  auto core = join(options, options_);
  draw_like_the_chief(*core);
  Devices devices = devices_of_all(*core);
  set_core(std::move(core), std::move(devices));
}

}  // namespace lockstep::contrib
