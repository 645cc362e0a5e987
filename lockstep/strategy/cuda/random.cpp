#include <ATen/Context.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraphsUtils.cuh>

#include <cstdlib>
#include <mutex>
#include <vector>

#include "lockstep/strategy/gpu.h"

namespace lockstep::gpu {
namespace {

/// LibTorch's default generator of a GPU belongs to all threads. Recursive: a composite operator calls others.
std::recursive_mutex& mutex_of(const at::Generator& default_generator) {
  static auto& mutexes = *new std::vector<std::recursive_mutex>(static_cast<std::size_t>(visible()));
  return mutexes[static_cast<std::size_t>(default_generator.device().index())];
}

}  // namespace

void use_deterministic_algorithms() {
  // cuBLAS gives the same bits on several streams only with a workspace of this kind, which LibTorch insists on.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

at::Generator make_generator(at::Device device, std::uint64_t seed) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  at::Generator generator = at::cuda::detail::createCUDAGenerator(device.index());
  generator.set_current_seed(seed);
  return generator;
}

std::uint64_t numbers_drawn(const at::Generator& generator) {
  if (!generator.defined() || at::cuda::currentStreamCaptureStatus() != at::cuda::CaptureStatus::None) return 0;
  return generator.get_offset();
}

std::uint64_t shared_numbers_drawn() {
  return visible() > 0 ? numbers_drawn(at::cuda::detail::getDefaultCUDAGenerator()) : 0;
}

std::unique_lock<std::recursive_mutex> hold_default_generator(at::Device device) {
  return std::unique_lock(mutex_of(at::cuda::detail::getDefaultCUDAGenerator(device.index())));
}

DefaultGeneratorScope::DefaultGeneratorScope(const at::Generator& generator)
    : shared_(at::cuda::detail::getDefaultCUDAGenerator(generator.device().index())),
      lock_(mutex_of(shared_)),
      outer_(shared_.graphsafe_get_state()) {
  shared_.graphsafe_set_state(generator.graphsafe_get_state());
}

DefaultGeneratorScope::~DefaultGeneratorScope() { shared_.graphsafe_set_state(outer_); }

}  // namespace lockstep::gpu
