#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <cstdlib>
#include <set>

#include "lockstep/base/logging.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/small_net.h"

// The memory of R replicas on one machine: one copy of weights and optimizer state, R of gradients.
namespace lockstep {
namespace {

/// Counts the bytes that LibTorch allocated and did not free since construction, on this thread and in `run`.
class LiveBytes {
 public:
  LiveBytes() : meter_(std::make_shared<Meter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, meter_) {}
  std::int64_t now() const { return meter_->live.load(); }

 private:
  struct Meter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override { live += size; }
    bool memoryProfilingEnabled() const override { return true; }
    std::atomic<std::int64_t> live{0};
  };
  std::shared_ptr<Meter> meter_;
  c10::DebugInfoGuard guard_;
};

/// Bytes of memory behind tensors, each piece counted once.
class DistinctStorages {
 public:
  void add(const at::Tensor& tensor) {
    if (tensor.defined() && seen_.insert(tensor.storage().data()).second)
      bytes_ += static_cast<std::int64_t>(tensor.storage().nbytes());
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::set<const void*> seen_;
  std::int64_t bytes_ = 0;
};

auto large_net() { return torch::nn::Sequential(torch::nn::Linear(300, 500), torch::nn::Linear(500, 100)); }

std::int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

class Memory : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_log_severity(Severity::Warning); }
};
INSTANTIATE_TEST_SUITE_P(Replicas, Memory, testing::Values(1, 2, 3, 4));

TEST_P(Memory, HoldsWeightsAndStateOnceAndGradientsPerReplica) {
  const LiveBytes live;
  MirroredStrategy strategy({.devices = cpus(GetParam())});
  auto model = strategy.make(large_net);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
  const std::int64_t one_copy = bytes_of(model.parameters());
  ASSERT_GT(one_copy, 500'000);
  const auto is_about = [](std::int64_t bytes, std::int64_t expected) {
    return std::abs(bytes - expected) < 20'000;
  };  // small things
  EXPECT_PRED2(is_about, live.now(), one_copy) << "after make";

  const at::Tensor x = torch::ones({2, 300});
  for (int step = 0; step < 3; ++step) {
    strategy.run([&] {
      optimizer.backward(model->forward(x).square().mean());
      optimizer.reduce_gradients();
    });
    DistinctStorages weights;
    DistinctStorages gradients;
    for (std::size_t k = 0; k < model.size(); ++k) {
      for (const auto& parameter : model.replica(k)->parameters()) {
        weights.add(parameter);
        gradients.add(parameter.grad());
      }
    }
    EXPECT_EQ(weights.bytes(), one_copy) << "step " << step;
    EXPECT_EQ(gradients.bytes(), one_copy * GetParam()) << "step " << step;
    const std::int64_t state_before = step == 0 ? 0 : 2 * one_copy;
    EXPECT_PRED2(is_about, live.now(), one_copy + gradients.bytes() + state_before)
        << "step " << step << ", before the update";

    strategy.run([&] { optimizer.step(); });
    DistinctStorages state;
    for (std::size_t k = 0; k < model.size(); ++k) {
      for (const auto& entry : optimizer.core()->replicas[k]->inner->state()) {
        for (const auto& [key, value] : OptimizerStateTraits<torch::optim::Adam>::read(*entry.second)) {
          if (value.dim() > 0) state.add(value);
        }
      }
    }
    EXPECT_EQ(state.bytes(), 2 * one_copy) << "exp_avg and exp_avg_sq, step " << step;
    EXPECT_PRED2(is_about, live.now(), 3 * one_copy) << "step " << step << ", after the update";
  }
}

TEST_P(Memory, DoesNotGrowWithSteps) {
  const LiveBytes live;
  MirroredStrategy strategy({.devices = cpus(GetParam())});
  auto model = strategy.make(large_net);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.01).momentum(0.9));
  optimizer.set_clip_global_norm(1.0);
  const at::Tensor x = torch::ones({2, 300});
  const auto step = [&] { strategy.run([&] { optimizer.minimize(model->forward(x).square().mean()); }); };
  for (int k = 0; k < 3; ++k) step();
  const std::int64_t before = live.now();
  for (int k = 0; k < 30; ++k) step();
  EXPECT_EQ(live.now(), before);
}

}  // namespace
}  // namespace lockstep
