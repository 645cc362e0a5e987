#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <functional>

#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/weights_apart.h"
#include "lockstep/strategy/captured_step.h"
#include "lockstep/strategy/devices.h"
#include "tests/gpu/gpu_training.h"

// CUDA functions that make a thread wait for the GPU, possibly in order to allocate memory. The program's own
// definitions replace the library's, also for LibTorch, so that a step's calls can be counted.
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
  bool on_two_gpus = false;
};

class GpuWaits : public testing::TestWithParam<WaitsCase> {
 protected:
  void SetUp() override {
    if (GetParam().on_two_gpus && visible_gpus() < 2) GTEST_SKIP() << "needs two GPUs";
    keep_weights_apart(GetParam().apart);
  }
  void TearDown() override { keep_weights_apart({}); }
  MirroredOptions options() const {
    return GetParam().on_two_gpus ? MirroredOptions{.devices = gpus(2)} : on_gpu(replicas);
  }
  const int replicas = GetParam().replicas;
};
INSTANTIATE_TEST_SUITE_P(Replicas, GpuWaits,
                         testing::Values(WaitsCase{1}, WaitsCase{2}, WaitsCase{4}, WaitsCase{2, {.weights = true}},
                                         WaitsCase{4, {.weights = true}},
                                         WaitsCase{4, {.weights = true, .in_reach = false}},
                                         WaitsCase{.replicas = 2, .on_two_gpus = true},
                                         WaitsCase{2, {.in_reach = false}, /*on_two_gpus=*/true}));

TEST(GpuCalls, AreCounted) {
  const int before = waits;
  c10::cuda::device_synchronize();
  at::Tensor x = at::ones({1}, kGpu);
  EXPECT_EQ(x.item<float>(), 1);
  EXPECT_GE(waits - before, 2);
}

TEST_P(GpuWaits, NoneInAStep) {
  MirroredStrategy strategy(options());
  const bool may_record = !GetParam().on_two_gpus;
  auto model = strategy.make<Net>(70, 0.2);
  auto optimizer = strategy.make_optimizer<torch::optim::AdamW>(model, torch::optim::AdamWOptions(0.01));
  const auto batch = strategy.run(
      [](const Batch& mine) {
        const at::Device here = get_replica_context().device();
        return Batch{mine.rows.to(here), mine.labels.to(here)};
      },
      split(strategy, gpu_batch(24)));
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
  EXPECT_EQ(captured.was_replayed(), may_record);
  optimizer.set_clip_global_norm(0.1);
  optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep);
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
  EXPECT_EQ(captured_scaled.was_replayed(), may_record);
  optimizer.set_non_finite_policy(NonFinitePolicy::Raise);  // each replica waits for the previous step
  EXPECT_EQ(waits_in(plainly), 10 * replicas);
  EXPECT_EQ(waits_in(as_graph), 10 * replicas);
  EXPECT_EQ(captured.was_replayed(), may_record);
  optimizer.set_non_finite_policy(NonFinitePolicy::Ignore);
  optimizer.set_digest(
      {.every = 5});  // the last ten of 16 calls include two that follow a comparison's step, and receive it
  EXPECT_EQ(waits_in(plainly), 2 * replicas);
  EXPECT_EQ(waits_in(as_graph), 2 * replicas) << captured.reason();
  EXPECT_EQ(captured.was_replayed(), may_record);
}

}  // namespace
}  // namespace lockstep
