#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <functional>

#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/weight_copies.h"
#include "lockstep/strategy/captured_step.h"
#include "tests/gpu/gpu_training.h"

// Functions of CUDA that make a thread wait for the GPU, or that do so to hand out memory. The program's own ones take the place
// of the library's, also for LibTorch, so that a step's calls can be counted.
namespace {

std::atomic<int> waits{0};

template <class Function, class... Args>
cudaError_t counted(const char* name, Args... args) {
  ++waits;
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name))(args...);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return counted<decltype(cudaStreamSynchronize)>("cudaStreamSynchronize", stream);
}
cudaError_t cudaDeviceSynchronize() { return counted<decltype(cudaDeviceSynchronize)>("cudaDeviceSynchronize"); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return counted<decltype(cudaEventSynchronize)>("cudaEventSynchronize", event);
}
cudaError_t cudaMemcpy(void* into, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return counted<decltype(cudaMemcpy)>("cudaMemcpy", into, from, bytes, kind);
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return counted<cudaError_t(void**, size_t)>("cudaMalloc", memory, bytes);
}
cudaError_t cudaFree(void* memory) { return counted<decltype(cudaFree)>("cudaFree", memory); }
}
#pragma GCC visibility pop

namespace lockstep {
namespace {

struct WaitsCase {
  int replicas;
  ApartOptions apart = {};
};

class GpuWaits : public testing::TestWithParam<WaitsCase> {
 protected:
  GpuWaits() { keep_weights_apart(GetParam().apart); }
  ~GpuWaits() override { keep_weights_apart({}); }
  const int replicas = GetParam().replicas;
};
INSTANTIATE_TEST_SUITE_P(Replicas, GpuWaits,
                         testing::Values(WaitsCase{1}, WaitsCase{2}, WaitsCase{4}, WaitsCase{2, {.weights = true}},
                                         WaitsCase{4, {.weights = true}},
                                         WaitsCase{4, {.weights = true, .in_reach = false}}));

TEST(GpuCalls, AreCounted) {
  const int before = waits;
  c10::cuda::device_synchronize();
  at::Tensor x = at::ones({1}, kGpu);
  EXPECT_EQ(x.item<float>(), 1);
  EXPECT_GE(waits - before, 2);
}

TEST_P(GpuWaits, NoneInAStep) {
  MirroredStrategy strategy(on_gpu(replicas));
  auto model = strategy.make<Net>(70, 0.2);
  auto optimizer = strategy.make_optimizer<torch::optim::AdamW>(model, torch::optim::AdamWOptions(0.01));
  const auto batch = split(strategy, gpu_batch(24));
  const auto train = [&](const Batch& mine) {
    const at::Tensor loss = average_loss(loss_per_row(model->forward(mine.rows), mine.labels));
    optimizer.minimize(loss);
    return loss.detach();
  };
  auto captured = strategy.capture(train);
  const auto waits_in = [&](const std::function<void()>& step) {
    for (int i = 0; i < 6; ++i) step();
    const int before = waits;
    for (int i = 0; i < 10; ++i) step();
    return waits - before;
  };
  const auto plainly = [&] { strategy.reduce(ReduceOp::Sum, strategy.run(train, batch)); };
  const auto as_graph = [&] { strategy.reduce(ReduceOp::Sum, captured(batch)); };
  EXPECT_EQ(waits_in(plainly), 0);
  EXPECT_EQ(waits_in(as_graph), 0) << captured.reason();
  EXPECT_TRUE(captured.was_replayed());
  optimizer.set_clip_global_norm(0.1);
  optimizer.set_not_finite(NotFinite::SkipStep);
  EXPECT_EQ(waits_in(plainly), 0);
  EXPECT_EQ(waits_in(as_graph), 0);
  GradScaler scaler(strategy);
  const auto scaled = [&](const Batch& mine) {
    const at::Tensor loss = average_loss(loss_per_row(model->forward(mine.rows), mine.labels));
    optimizer.minimize(loss, scaler);
    return loss.detach();
  };
  auto captured_scaled = strategy.capture(scaled);
  EXPECT_EQ(waits_in([&] { strategy.run(scaled, batch); }), 0);
  EXPECT_EQ(waits_in([&] { captured_scaled(batch); }), 0) << captured_scaled.reason();
  EXPECT_TRUE(captured_scaled.was_replayed());
  optimizer.set_not_finite(NotFinite::Raise);  // each replica waits for the step before
  EXPECT_EQ(waits_in(plainly), 10 * replicas);
  EXPECT_EQ(waits_in(as_graph), 10 * replicas);
  EXPECT_TRUE(captured.was_replayed());
}

}  // namespace
}  // namespace lockstep
