#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/nccl/nccl_engine.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::gpu {
namespace {

/// Where this worker's GPU is, by NCCL's rule: it refuses two workers of which this is the same.
std::string place_of(c10::DeviceIndex device) {
  char bus[32] = {};
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  if (const char* const given = std::getenv("NCCL_HOSTID")) return str(given, " ", bus);
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return str(host, " ", boot, " ", bus);
}

class NcclWorkers final : public GpuWorkers {
 public:
  NcclWorkers(at::Device device, const nccl::EngineOptions& options)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())), engine_(options) {}

  void start(const Collective& collective, const std::vector<std::shared_ptr<Arrival>>& after,
             Deadline limit) override {
    const c10::cuda::CUDAStreamGuard on_it(stream_);
    for (const auto& each : after) each->await();
    at::Tensor room;  // freed for this stream alone, so after what uses it
    engine_.start(
        collective, stream_.stream(),
        [&](std::size_t bytes) {
          room = at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(stream_.device()).dtype(at::kByte));
          return room.data_ptr();
        },
        limit);
  }
  void wait() override { engine_.wait(); }

 private:
  c10::cuda::CUDAStream stream_;
  nccl::Engine engine_;
};

std::string broadcast_id(WorkerGroup& group, const Deadline& deadline) {
  std::string id = group.rank() == 0 ? nccl::make_id() : std::string();
  const at::Tensor mine = at::from_blob(id.data(), {static_cast<std::int64_t>(id.size())}, at::kByte);
  const at::Tensor all = workers::broadcast(group, mine, "id of NCCL", deadline);
  return {static_cast<const char*>(all.const_data_ptr()), all.nbytes()};
}

/// Why they go through host memory, the same on all workers; empty: they do not.
std::string why_not_connected(WorkerGroup& group, const std::vector<at::Device>& devices, const Deadline& deadline) {
  if (are_mixed(devices)) return "some replicas are on CPUs";
  if (!nccl::Engine::takes(group.workers(), group.replicas())) return "too many workers";
  std::set<std::string> places;
  bool reach_all = true;
  const workers::Texts mine{place_of(devices.front().index()), reach_each_other(devices) ? "" : "apart"};
  for (const auto& texts : workers::all_gather_texts(group, mine, "places of GPUs", deadline)) {
    places.insert(texts[0]);
    reach_all &= texts[1].empty();
  }
  if (places.size() < static_cast<std::size_t>(group.workers())) return "two workers have the same GPU";
  return reach_all ? "" : "the GPUs of a worker do not reach each other's memory";
}

}  // namespace

std::string nccl_version() { return nccl::version(); }

std::shared_ptr<GpuWorkers> connect_workers(WorkerGroup& group, const std::vector<at::Device>& devices,
                                            const CommunicationOptions& options, double join_seconds,
                                            double collective_seconds) {
  const Deadline deadline = Deadline::after(std::chrono::duration<double>(join_seconds));
  if (const std::string why = why_not_connected(group, devices, deadline); !why.empty()) {
    if (options.implementation == Implementation::Nccl) {
      throw InvalidArgument(errors::kDevice,
                            {.what = str("NCCL cannot connect the GPUs: ", why),
                             .help = "give each worker GPUs of its own that reach each other's memory, or use "
                                     "Implementation::Auto"});
    }
    say_info(str("gradients go through host memory and not from GPU to GPU: ", why));
    return nullptr;
  }
  const at::Device device = devices.front();
  const c10::cuda::CUDAGuard here(device);
  try {
    const nccl::EngineOptions reach{.connection = {.rank = group.rank(),
                                                   .workers = group.workers(),
                                                   .device = device.index(),
                                                   .id = broadcast_id(group, deadline),
                                                   .limit = deadline,
                                                   .check = [&group] { group.check(); },
                                                   .failed = [&group](const Error& error) { group.report(error); }},
                                    .replicas = group.replicas(),
                                    .call_seconds = collective_seconds};
    return std::make_shared<NcclWorkers>(device, reach);
  } catch (const Error& error) {
    group.report(error);  // the others wait for this worker
    throw;
  }
}

}  // namespace lockstep::gpu
