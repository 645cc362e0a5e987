#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "lockstep/strategy/gpu.h"

namespace lockstep::gpu {
namespace {

class CudaArrival final : public Arrival {
 public:
  explicit CudaArrival(const c10::cuda::CUDAStream& stream) : device_(stream.device_index()) { event_.record(stream); }
  void await() override {
    event_.block(c10::cuda::getCurrentCUDAStream(device_));
    event_.block(c10::cuda::getCurrentCUDAStream());
  }
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
    if (from.is_cuda()) {
      // A function of the pipeline has made it, on the stream of its thread, which is LibTorch's default one.
      at::cuda::CUDAEvent made;
      made.record(c10::cuda::getDefaultCUDAStream(from.device().index()));
      made.block(stream_);
    }
    const c10::cuda::CUDAStreamGuard on_it(stream_);
    if (!from.is_cpu() || from.layout() != at::kStrided) return from.to(stream_.device());
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

/// Straight from GPU to GPU where they reach each other, else by way of the host's memory: the driver knows.
void copy_bytes(const char* from, at::Device giver, char* into, at::Device taker, std::int64_t bytes, at::Device here) {
  if (bytes == 0) return;
  const auto stream = c10::cuda::getCurrentCUDAStream(here.index());
  C10_CUDA_CHECK(c10::cuda::CUDACachingAllocator::memcpyAsync(into, taker.index(), from, giver.index(),
                                                              static_cast<std::size_t>(bytes), stream.stream(),
                                                              /*p2p_enabled=*/false));
}

const char* address_of(const at::Tensor& tensor, std::int64_t element) {
  return static_cast<const char*>(tensor.const_data_ptr()) + element * static_cast<std::int64_t>(tensor.element_size());
}

}  // namespace

at::Tensor bring_here(const at::Tensor& tensor, at::Device here) {
  const auto is_known = [](at::Device device) { return device.is_cpu() || device.is_cuda(); };
  if (!tensor.defined() || tensor.device() == here || !is_known(tensor.device()) || !is_known(here)) return tensor;
  if (tensor.is_cuda() && here.is_cuda()) {
    // LibTorch reads the tensor on the stream that this thread has on its GPU, which knows nothing of meetings.
    at::cuda::CUDAEvent met;
    met.record(c10::cuda::getCurrentCUDAStream(here.index()));
    met.block(c10::cuda::getCurrentCUDAStream(tensor.device().index()));
  }
  return tensor.to(here);  // the stream of `here` waits for it, or the thread if that is the CPU
}

at::Tensor pull_elements(const at::Tensor& from, std::int64_t begin, std::int64_t count, at::Device here) {
  at::Tensor copy = at::empty({count}, at::TensorOptions(here).dtype(from.scalar_type()));
  const auto bytes = count * static_cast<std::int64_t>(from.element_size());
  copy_bytes(address_of(from, begin), from.device(), const_cast<char*>(address_of(copy, 0)), here, bytes, here);
  return copy;
}

void push_elements(const at::Tensor& from, const at::Tensor& into, std::int64_t begin, std::int64_t count) {
  const auto bytes = count * static_cast<std::int64_t>(from.element_size());
  copy_bytes(address_of(from, begin), from.device(), const_cast<char*>(address_of(into, begin)), into.device(), bytes,
             from.device());
}

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
