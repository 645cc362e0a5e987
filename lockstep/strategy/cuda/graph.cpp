#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/strategy/gpu.h"

namespace lockstep::gpu {
namespace {

/// One graph for all replicas: recording begins on a stream of its own, and the streams of the replicas join in when they wait for
/// its event, as they do in every run.
class CudaGraph final : public Graph {
 public:
  CudaGraph(c10::DeviceIndex device, std::vector<ReplicaGenerators> generators)
      : device_(device),
        generators_(std::move(generators)),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)),
        pool_(at::cuda::graph_pool_handle()) {}

  void record(FunctionRef<void()> run) override {
    at::cuda::CUDAEvent ready;
    ready.record(c10::cuda::getCurrentCUDAStream(device_));
    const c10::cuda::CUDAStreamGuard here(stream_);
    ready.block(stream_);
    std::vector<at::Generator> on_cpu = shared_generators_of({});
    for (const ReplicaGenerators& replica : generators_) on_cpu.push_back(replica.cpu);
    const RngSnapshot numbers(std::move(on_cpu));
    try {
      begin(pool_);
      run();
      graph_->capture_end();
    } catch (...) {
      abandon();
      numbers.restore();
      throw;
    }
  }

  void replay() override { graph_->replay(); }

  bool draws_for_replicas() const override {
    return std::ranges::none_of(generators_, [](const ReplicaGenerators& replica) {
      return replica.recurrent->was_replaced && replica.recurrent->state.defined();
    });
  }

 private:
  void begin(const at::cuda::MempoolId_t& pool) {
    graph_.emplace();
    for (const ReplicaGenerators& replica : generators_) graph_->register_generator_state(replica.gpu);
    // LibTorch registers what its default generator draws from: that must not be a replica's of another strategy just now.
    const auto held = hold_default_generator(stream_.device());
    // Other threads may go on to use the GPU meanwhile, such as those that copy batches.
    graph_->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  }

  /// LibTorch leaves its allocator and its generators in the state of recording when that fails.
  void abandon() noexcept {
    cudaGraph_t broken = nullptr;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream_.stream(), &status);
    if (status != cudaStreamCaptureStatusNone) cudaStreamEndCapture(stream_.stream(), &broken);
    if (broken != nullptr) cudaGraphDestroy(broken);
    cudaGetLastError();
    const auto attempt = [](auto&& part) {
      try {
        part();
      } catch (const std::exception&) {
        // It had not begun, or the GPU has failed: the next call says so.
      }
    };
    attempt([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_); });
    attempt([&] { c10::cuda::CUDACachingAllocator::releasePool(device_, pool_); });
    attempt([&] {
      // Recording something small to its end sets the generators right.
      const at::Tensor any = at::empty({1}, at::TensorOptions(stream_.device()));
      begin({0, 0});
      any.zero_();
      graph_->capture_end();
    });
    graph_.reset();
  }

  c10::DeviceIndex device_;
  std::vector<ReplicaGenerators> generators_;
  c10::cuda::CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
  std::optional<at::cuda::CUDAGraph> graph_;
};

}  // namespace

std::shared_ptr<Graph> make_graph(at::Device device, const std::vector<ReplicaGenerators>& generators) {
  return std::make_shared<CudaGraph>(device.index(), generators);
}

void copy_all(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& into) {
  if (!from.empty()) at::_foreach_copy_(into, from, /*non_blocking=*/true);
}

}  // namespace lockstep::gpu
