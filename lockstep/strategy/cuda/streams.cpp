#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/strategy/gpu.h"

namespace lockstep::gpu {
namespace {

/// cudaSetDevice makes the device's context current on the thread; c10's guards leave that out where the number is already
/// right, and the first call of cuBLAS on such a thread warns.
void make_context_current(c10::DeviceIndex device) {
  thread_local int current = -1;
  if (current == device) return;
  C10_CUDA_CHECK(cudaSetDevice(device));
  current = device;
}

/// A GPU has at most so many peers (8, without NVSwitch): pairs that were one too many.
class RefusedPeers {
 public:
  bool have(c10::DeviceIndex from, c10::DeviceIndex to) {
    const std::lock_guard lock(mutex_);
    return pairs_.contains({from, to});
  }
  void add(c10::DeviceIndex from, c10::DeviceIndex to) {
    const std::lock_guard lock(mutex_);
    pairs_.insert({from, to});
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<c10::DeviceIndex, c10::DeviceIndex>> pairs_;
};

RefusedPeers& refused_peers() {
  static auto& all = *new RefusedPeers;  // never destroyed: threads may outlive static objects
  return all;
}

bool can_reach(c10::DeviceIndex from, c10::DeviceIndex to) {
  int can_reach = 0;
  if (from != to) C10_CUDA_CHECK(cudaDeviceCanAccessPeer(&can_reach, from, to));
  return from == to || (can_reach != 0 && !refused_peers().have(from, to));
}

/// Kernels and copies then go straight from one GPU to the other, where the machine can do that.
void let_reach(c10::DeviceIndex from, c10::DeviceIndex to) {
  if (from == to || !can_reach(from, to)) return;
  const c10::cuda::CUDAGuard here(from);
  const cudaError_t result = cudaDeviceEnablePeerAccess(to, 0);
  if (result != cudaSuccess) cudaGetLastError();
  if (result == cudaErrorTooManyPeers) return refused_peers().add(from, to);
  c10::cuda::CUDACachingAllocator::enablePeerAccess(from, to);  // which throws if it failed for another reason
}

void let_reach_each_other(const std::vector<at::Device>& devices) {
  at::globalContext().lazyInitDevice(at::kCUDA);  // a strategy may be the program's first use of a GPU
  for (const at::Device from : devices) {
    for (const at::Device to : devices) {
      if (from.is_cuda() && to.is_cuda()) let_reach(from.index(), to.index());
    }
  }
}

cudaStreamCaptureStatus capture_status(const c10::cuda::CUDAStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream.stream(), &status));
  return status;
}

class CudaStreams final : public ReplicaStreams {
 public:
  explicit CudaStreams(const std::vector<at::Device>& devices)
      : device_(std::ranges::find_if(devices, &at::Device::is_cuda)->index()) {
    let_reach_each_other(devices);
    const c10::cuda::CUDAGuard here(device_);
    usual_.marks.resize(devices.size());
    has_worked_.resize(usual_.marks.size());
    for (std::size_t k = 0; k < devices.size(); ++k) {
      const c10::DeviceIndex device = devices[k].is_cuda() ? devices[k].index() : device_;
      devices_.push_back(device);
      waits_on_host_.push_back(devices[k].is_cpu());
      if (device != device_ && std::ranges::find(others_, device, &OtherGpu::device) == others_.end())
        others_.push_back({.device = device});
      if (k > 0) own_.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device));
      // Made now and not at its first use, where another replica may wait for it at the same time.
      usual_.marks[k].record(c10::cuda::getCurrentCUDAStream(device));
    }
  }

  void begin_run() override {
    if (own_.empty()) return;
    std::fill(has_worked_.begin(), has_worked_.end(), 0);
    const auto callers = c10::cuda::getCurrentCUDAStream(device_);
    const bool is_recording = capture_status(callers) != cudaStreamCaptureStatusNone;
    events_ = is_recording ? &recorded_ : &usual_;
    if (is_recording) {
      recorded_ = {};
      recorded_.marks.resize(usual_.marks.size());
    }
    follow_other_gpus();
    events_->begin.record(callers);
  }

  void end_run() override {
    if (own_.empty()) return;
    const auto callers = c10::cuda::getCurrentCUDAStream(device_);
    // Recording has failed: events would only hide why.
    if (capture_status(callers) == cudaStreamCaptureStatusInvalidated) return;
    for (std::size_t k = 1; k < has_worked_.size(); ++k) {
      if (has_worked_[k] != 0) events_->marks[k].block(callers);
    }
    lead_other_gpus();
  }

  std::unique_ptr<Scope> enter(int replica) override { return std::make_unique<OnStream>(*this, replica); }

  void mark(int replica) override {
    if (replica == 0) follow_other_gpus();
    const auto k = static_cast<std::size_t>(replica);
    events_->marks[k].record(c10::cuda::getCurrentCUDAStream(devices_[k]));
  }

  /// An event may by now have been recorded again, by a replica that is further on: then more is waited for than needed,
  /// and never for something that waits for this replica.
  void wait_for_others(int replica) override {
    const auto mine = c10::cuda::getCurrentCUDAStream(devices_[static_cast<std::size_t>(replica)]);
    for (std::size_t k = 0; k < events_->marks.size(); ++k) {
      if (k != static_cast<std::size_t>(replica)) events_->marks[k].block(mine);
    }
    if (replica == 0) lead_other_gpus();
    wait_on_host(replica);
  }

 private:
  class OnStream final : public Scope {
   public:
    OnStream(CudaStreams& streams, int replica) : streams_(streams), replica_(replica) {
      const c10::DeviceIndex device = streams.devices_[static_cast<std::size_t>(replica)];
      device_.emplace(device);
      make_context_current(device);
      if (replica > 0) {
        const auto& own = streams.own_[static_cast<std::size_t>(replica - 1)];
        stream_.emplace(own);
        streams.events_->begin.block(own);
      }
      streams.wait_on_host(replica);
    }
    /// Also after a failure: the caller waits for what a replica has started.
    ~OnStream() override {
      if (replica_ == 0) return;
      try {
        streams_.mark(replica_);
        streams_.has_worked_[static_cast<std::size_t>(replica_)] = 1;
      } catch (const std::exception&) {
        // The GPU has failed: the caller's next call says so.
      }
    }

   private:
    CudaStreams& streams_;
    int replica_;
    std::optional<c10::cuda::CUDAGuard> device_;
    std::optional<c10::cuda::CUDAStreamGuard> stream_;
  };

  /// What a replica's stream has waited for is done, wherever a replica on the CPU looks at it from now on.
  void wait_on_host(int replica) const {
    const auto k = static_cast<std::size_t>(replica);
    if (waits_on_host_[k]) c10::cuda::getCurrentCUDAStream(devices_[k]).synchronize();
  }

  // On the caller's thread, which is replica 0's: its current streams of other GPUs.
  struct OtherGpu {
    c10::DeviceIndex device;
    at::cuda::CUDAEvent event = {};
  };
  /// Its stream of the first GPU goes on after them, and they after it.
  void follow_other_gpus() {
    for (OtherGpu& other : others_) {
      other.event.record(c10::cuda::getCurrentCUDAStream(other.device));
      other.event.block(c10::cuda::getCurrentCUDAStream(device_));
    }
  }
  void lead_other_gpus() {
    if (others_.empty()) return;
    lead_.record(c10::cuda::getCurrentCUDAStream(device_));
    for (const OtherGpu& other : others_) lead_.block(c10::cuda::getCurrentCUDAStream(other.device));
  }

  c10::DeviceIndex device_;                 ///< of replica 0, or the first GPU
  std::vector<c10::DeviceIndex> devices_;   ///< of each replica's stream
  std::vector<bool> waits_on_host_;         ///< of each replica: it is on the CPU
  std::vector<c10::cuda::CUDAStream> own_;  ///< of replicas 1, 2, ...
  std::vector<OtherGpu> others_;
  at::cuda::CUDAEvent lead_;
  struct Events {
    at::cuda::CUDAEvent begin;               ///< of a run, on the caller's stream
    std::vector<at::cuda::CUDAEvent> marks;  ///< per replica
  };
  Events usual_;
  Events recorded_;  ///< of a run that is recorded: new ones each time, since they belong to what is recorded
  Events* events_ = &usual_;
  /// Per replica: its function was called in this run. A run that has failed may leave replicas out.
  std::vector<char> has_worked_;
};

}  // namespace

bool is_built() { return true; }

int visible() { return static_cast<int>(c10::cuda::device_count()); }

void keep_for_this_stream(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda() || !tensor.has_storage()) return;
  c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(),
                                                c10::cuda::getCurrentCUDAStream(tensor.device().index()));
}

bool reach_each_other(const std::vector<at::Device>& devices) {
  if (std::ranges::any_of(devices, &at::Device::is_cuda)) let_reach_each_other(devices);
  return std::ranges::all_of(devices, [&](at::Device from) {
    return std::ranges::all_of(
        devices, [&](at::Device to) { return from.is_cuda() && to.is_cuda() && can_reach(from.index(), to.index()); });
  });
}

std::unique_ptr<ReplicaStreams> make_streams(const std::vector<at::Device>& devices) {
  return std::make_unique<CudaStreams>(devices);
}

}  // namespace lockstep::gpu
