#include "lockstep/strategy/multi_worker_strategy.h"

#include <ATen/Version.h>

#include <algorithm>
#include <string>

#include "lockstep/base/cores.h"
#include "lockstep/base/text.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/base/vocabulary.h"
#include "lockstep/comm/cluster/cluster_resolver.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/local_replicas.h"
#include "lockstep/strategy/replica_random.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/version.h"

namespace lockstep {
namespace {

constexpr double kDefaultSeconds = 600;

/// Reductions in cross-replica context over the replicas of all workers: each worker calls with the components of its own
/// replicas. What only copies (`broadcast`) stays on the worker.
class CollectiveAllReduce final : public OrderedCrossDeviceOps {
 public:
  explicit CollectiveAllReduce(std::shared_ptr<WorkerGroup> group) : group_(std::move(group)) {}

  Mirrored<at::Tensor> reduce(ReduceOp op, const PerReplica<at::Tensor>& value, const Devices& destinations,
                              const CommunicationOptions& options) override {
    return broadcast(workers::all_reduce(*group_, op, value.values(), "reduce", options), destinations);
  }

  Mirrored<IndexedSlices> reduce_slices(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                        const Devices& destinations, const CommunicationOptions& options) override {
    const auto all = workers::all_gather(*group_, value.values(), "reduce of sparse rows", deadline_of(options));
    return OrderedCrossDeviceOps::reduce_slices(op, PerReplica<IndexedSlices>(all), destinations, options);
  }

  Mirrored<at::Tensor> gather(const PerReplica<at::Tensor>& value, std::int64_t axis, const Devices& destinations,
                              const CommunicationOptions& options) override {
    const auto all = workers::all_gather(*group_, value.values(), str("gather along ", axis), deadline_of(options));
    return OrderedCrossDeviceOps::gather(PerReplica<at::Tensor>(all), axis, destinations, options);
  }

 private:
  std::shared_ptr<WorkerGroup> group_;
};

std::vector<DeviceName> plan_devices(const MultiWorkerOptions& options, const ClusterDescription& cluster) {
  if (cluster.num_workers() > 1 && is_being_tuned()) {
    throw Unimplemented(errors::kNotAvailable,
                        {.what = "lockstep tune measures a program of one process",
                         .seen = str("the cluster has ", cluster.num_workers(), " workers"),
                         .help = "measure the program without TF_CONFIG and `lockstep run`, as one worker"});
  }
  auto devices = plan_mirrored_devices(devices_or_default(options.devices));
  for (const auto& device : devices) require_here(device);
  if (cluster.num_workers() == 1) require_way_between(devices, options.communication.implementation);
  for (DeviceName& device : devices) {
    if (cluster.is_local()) continue;
    const auto logical = device.logical;
    device = cluster.device(device.type, device.index.value_or(0));
    device.logical = logical;
    device.replica = 0;  // the full name, as devices are compared by it
  }
  return devices;
}

/// LibTorch chooses its kernels by what the CPU can do, so other kinds give other bits.
std::string kind_of_cpu() { return str(cpu_name(), ", ", at::get_cpu_capability()); }

/// "CPU", "GPU", or that of each replica: a GPU rounds differently, so replica k must be on the same kind on all workers.
std::string kinds_of(const std::vector<DeviceName>& devices) {
  std::string kinds = devices.front().type;
  if (!are_mixed(torch_devices(devices))) return kinds;
  for (std::size_t k = 1; k < devices.size(); ++k) kinds += " " + devices[k].type;
  return kinds;
}

std::shared_ptr<WorkerGroup> join(const MultiWorkerOptions& options, const ClusterDescription& cluster,
                                  const std::vector<DeviceName>& devices, int threads) {
  if (cluster.num_workers() == 1) return nullptr;
  if (options.data_port < 0 || options.data_port > 65535 || !(options.join_seconds >= 0)) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("data_port must be 0 to 65535 and join_seconds >= 0, got ", options.data_port,
                                       " and ", options.join_seconds),
                           .help = "leave data_port out for a free port, and join_seconds for 300"});
  }
  const std::string nccl = gpu::nccl_version();
  const double seconds = options.communication.timeout_seconds.value_or(kDefaultSeconds);
  const std::shared_ptr<WorkerGroup> workers = join_workers(
      {.cluster = cluster,
       .replicas = static_cast<int>(devices.size()),
       .facts = {str("version of Lockstep: ", LOCKSTEP_VERSION),
                 in_words_here(str("replicas of a worker: ", devices.size())), str("threads of a replica: ", threads),
                 str("devices: ", kinds_of(devices)), str("version of NCCL: ", nccl.empty() ? "not built in" : nccl),
                 str("seed: ", options.seed ? str(*options.seed) : "the chief's"),
                 str("communication.implementation: ", to_string(options.communication.implementation)),
                 str("communication.bytes_per_pack: ", options.communication.bytes_per_pack),
                 str("communication.timeout_seconds: ", seconds), str("strict: ", options.strict ? "true" : "false"),
                 str("own kernels: ", options.fast_kernels ? str(*options.fast_kernels) : "unset")},
       .machine = kind_of_cpu(),
       .join_seconds = options.join_seconds,
       .collective_seconds = seconds,
       .ring = options.communication.implementation == Implementation::Ring,
       .bind_address = options.bind_address,
       .data_port = options.data_port,
       .tls = options.tls});
  if (const auto here = torch_devices(devices); std::ranges::any_of(here, &at::Device::is_cuda))
    workers->set_gpu_workers(
        gpu::connect_workers(*workers, here, options.communication, options.join_seconds, seconds));
  return workers;
}

std::uint64_t job_seed(const MultiWorkerOptions& options, WorkerGroup* workers) {
  std::uint64_t seed = seed_shared_generators(options.seed);
  if (workers && !options.seed)
    workers::broadcast_bytes(*workers, &seed, sizeof seed, "seed of the strategy", deadline_of(options.communication));
  return seed;
}

}  // namespace

struct MultiWorkerMirroredStrategy::Plan {
  MultiWorkerOptions options;
  ClusterDescription cluster =
      describe_cluster(options.cluster_resolver ? *options.cluster_resolver
                                                : static_cast<const ClusterResolver&>(TFConfigClusterResolver()));
  std::vector<DeviceName> devices = plan_devices(options, cluster);
  int on_this_host = static_cast<int>(devices.size() * cluster.workers_on_this_host().size());
  int threads = plan_intra_op_threads(options.intra_op_threads, on_this_host);
  std::shared_ptr<WorkerGroup> workers = join(options, cluster, devices, threads);
};

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(MultiWorkerOptions options)
    : MultiWorkerMirroredStrategy(std::unique_ptr<const Plan>(new Plan{std::move(options)})) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(std::unique_ptr<const Plan> plan)
    : Strategy({.devices = plan->devices,
                .cross_device_ops = plan->workers ? std::make_shared<CollectiveAllReduce>(plan->workers) : nullptr,
                .communication = plan->options.communication,
                .strict = plan->options.strict,
                .workers = plan->workers}),
      cluster_(std::make_unique<const ClusterDescription>(plan->cluster)) {
  make_replicas({.on_this_host = plan->on_this_host,
                 .intra_op_threads = plan->threads,
                 .seed = job_seed(plan->options, plan->workers.get()),
                 .keep_memory = plan->options.keep_memory,
                 .fast_kernels = plan->options.fast_kernels},
                plan->options.deterministic);
}

MultiWorkerMirroredStrategy::~MultiWorkerMirroredStrategy() = default;

std::string MultiWorkerMirroredStrategy::describe() const {
  const WorkerGroup* const workers = detail::StrategyAccess::workers(*this);
  return str(to_string(*cluster_), "; ", counted(num_local_replicas(), "replica"), "\n",
             describe_routes(
                 {.asked = communication().implementation,
                  .on_cpu = !std::ranges::any_of(
                      devices(), [](const std::string& name) { return torch_device(parse_device(name)).is_cuda(); }),
                  .by_nccl = workers != nullptr && workers->gpu_workers() != nullptr,
                  .workers = num_workers(),
                  .on_this_host = static_cast<int>(cluster_->workers_on_this_host().size())}),
             "\n");
}

}  // namespace lockstep
