#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "lockstep/strategy/gpu.h"

namespace lockstep::gpu {
namespace {

class CudaArrival final : public Arrival {
 public:
  explicit CudaArrival(const c10::cuda::CUDAStream& stream) : device_(stream.device_index()) { event_.record(stream); }
  void await() override { event_.block(c10::cuda::getCurrentCUDAStream(device_)); }
  void wait_on_host() override { event_.synchronize(); }

 private:
  c10::DeviceIndex device_;
  at::cuda::CUDAEvent event_;
};

class CudaCopyStream final : public CopyStream {
 public:
  explicit CudaCopyStream(c10::DeviceIndex device)
      // Not of those that replicas get: copies go on while a step is recorded on these.
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device)) {}

  at::Tensor copy(const at::Tensor& from) override {
    if (!from.is_cpu() || from.layout() != at::kStrided) return from.to(stream_.device());
    const c10::cuda::CUDAStreamGuard on_it(stream_);
    // LibTorch keeps the pinned memory until the copy is done, and then for the next one.
    const at::TensorOptions options = at::TensorOptions(from.scalar_type());
    const at::MemoryFormat format = from.suggest_memory_format();
    const at::Tensor pinned = at::empty(from.sizes(), options.pinned_memory(true), format).copy_(from);
    return at::empty(from.sizes(), options.device(stream_.device()), format).copy_(pinned, /*non_blocking=*/true);
  }

  std::shared_ptr<Arrival> mark() override { return std::make_shared<CudaArrival>(stream_); }

 private:
  c10::cuda::CUDAStream stream_;
};

}  // namespace

std::shared_ptr<Arrival> mark_this_stream(at::Device device) {
  return std::make_shared<CudaArrival>(c10::cuda::getCurrentCUDAStream(device.index()));
}

at::Tensor make_pinned(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions(type).pinned_memory(true));
}

std::unique_ptr<CopyStream> make_copy_stream(at::Device device) {
  return std::make_unique<CudaCopyStream>(device.index());
}

}  // namespace lockstep::gpu
