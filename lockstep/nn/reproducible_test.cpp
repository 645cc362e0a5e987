#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <atomic>
#include <thread>

#include "lockstep/base/logging.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// One seed, one result: when repeated, under load, and compared to the plain loop with the same seed.
namespace lockstep {
namespace {

/// Threads that take cores away from the replicas at odd moments, while this object exists.
class Load {
 public:
  explicit Load(int threads) {
    for (int t = 0; t < threads; ++t) {
      threads_.emplace_back([this, t] {
        volatile std::uint64_t x = 1;
        for (std::uint64_t burst = 1; !stop_.load(std::memory_order_relaxed); ++burst) {
          for (std::uint64_t i = 0; i < 20'000 * (1 + (burst * (t + 3)) % 7); ++i) x = x * 6364136223846793005u + 1;
          std::this_thread::yield();
        }
      });
    }
  }
  ~Load() {
    stop_ = true;
    for (auto& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

/// Two epochs over shuffled rows, with dropout and batch norm: returns all resulting tensors.
std::vector<at::Tensor> train_from_seed(int replicas, std::uint64_t seed) {
  torch::manual_seed(seed);
  MirroredStrategy strategy({.devices = test_devices(replicas)});
  auto model = strategy.make<SmallNet>(24, 0.5);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
  const Batch all = random_batch(44);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& which : torch::randperm(44, at::kLong).split(11)) {
      strategy.run(
          [&](const Batch& mine) {
            optimizer.minimize(average_loss(loss_per_row(model->forward(mine.rows), mine.labels), 11));
          },
          share_out(strategy, all.pick(which)));
    }
  }
  auto left = copies_of(model.parameters());
  for (std::size_t k = 0; k < model.size(); ++k) {
    for (const auto& buffer : copies_of(model.replica(k)->buffers())) left.push_back(buffer);
  }
  for (const auto& [parameter, state] : optimizer.state()) {
    for (const auto& [key, value] : state) left.push_back(value);
  }
  return left;
}

class Reproducible : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_log_severity(Severity::Warning); }
};
INSTANTIATE_TEST_SUITE_P(Replicas, Reproducible, testing::Values(1, 2, 3, 4));

TEST_P(Reproducible, FiftyRunsWithOneSeedUnderLoadLeaveTheSameBits) {
  const auto first = train_from_seed(GetParam(), 23);
  EXPECT_NE(first_difference(train_from_seed(GetParam(), 24), first), "")
      << "the seed changes nothing: this test is blind";
  const Load load(3);
  for (int repeat = 0; repeat < 50; ++repeat) {
    ASSERT_EQ(first_difference(train_from_seed(GetParam(), 23), first), "") << "repeat " << repeat;
  }
}

/// Weights of three models and the numbers drawn after each. `make` is given functions that build a module.
template <class Make>
std::vector<at::Tensor> initial_weights(const Make& make) {
  std::vector<at::Tensor> all;
  const auto add = [&](const auto& model) {
    for (const auto& weight : copies_of(model->parameters())) all.push_back(weight);
    all.push_back(torch::rand({7}));
  };
  const auto layer = [] { return torch::nn::Linear(30, 5); };
  add(make([] { return std::make_shared<SmallNet>(20); }));
  add(make(layer));
  add(make(layer));
  add(make([] {
    torch::manual_seed(5);
    return torch::nn::Linear(4, 5);
  }));
  return all;
}

TEST_P(Reproducible, InitialWeightsAreThePlainPrograms) {
  torch::manual_seed(11);
  const auto plain = initial_weights([](const auto& build) { return module_here(build()); });
  torch::manual_seed(11);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  EXPECT_EQ(first_difference(initial_weights([&](const auto& build) { return strategy.make(build); }), plain), "");
  MirroredStrategy seeded({.devices = test_devices(GetParam()), .seed = 11});
  EXPECT_EQ(first_difference(initial_weights([&](const auto& build) { return seeded.make(build); }), plain), "");
  seeded.set_seed(11);
  EXPECT_EQ(first_difference(initial_weights([&](const auto& build) { return seeded.make(build); }), plain), "");
}

TEST_P(Reproducible, OnlyTheDropoutOfOneReplicaAdvancesTheCallersNumbers) {
  const auto draw = [] { return torch::rand({3}); };
  torch::manual_seed(11);
  if (GetParam() == 1) draw();
  const auto plain = copies_of(module_here(torch::nn::Linear(30, 5))->parameters());
  torch::manual_seed(11);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  strategy.run(draw);
  const auto ours = copies_of(strategy.make([] { return torch::nn::Linear(30, 5); }).parameters());
  EXPECT_EQ(first_difference(ours, plain), "");
}

/// With a single replica: from the same seed, Lockstep and the plain loop draw the same weights, rows and masks.
template <class Opt, class Options>
void expect_bits_of_the_plain_loop(const Options& options) {
  torch::manual_seed(77);
  MirroredStrategy strategy({.devices = test_devices(1)});
  auto model = strategy.make<SmallNet>(24, 0.4);
  auto optimizer = strategy.make_optimizer<Opt>(model, options);
  for (int step = 0; step < 20; ++step) {
    const Batch batch = random_batch(2 + (step * 5) % 13);
    strategy.run([&] { optimizer.minimize(loss_per_row(model->forward(batch.rows), batch.labels).mean()); });
  }

  torch::manual_seed(77);
  auto plain = module_here(std::make_shared<SmallNet>(24, 0.4));
  Opt plain_optimizer(plain->parameters(), options);
  for (int step = 0; step < 20; ++step) {
    const Batch batch = random_batch(2 + (step * 5) % 13);
    plain_optimizer.zero_grad();
    loss_per_row(plain->forward(batch.rows), batch.labels).mean().backward();
    plain_optimizer.step();
  }
  EXPECT_EQ(first_difference(model.parameters(), plain->parameters()), "");
  EXPECT_EQ(first_difference(model.replica(0)->buffers(), plain->buffers()), "");
  EXPECT_TRUE(model->unused.equal(torch::ones({5}))) << "decay of a parameter without gradient";
}

TEST(OneReplica, HasTheBitsOfThePlainLoopWithDropoutBatchNormAndDecay) {
  set_log_severity(Severity::Warning);
  expect_bits_of_the_plain_loop<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  expect_bits_of_the_plain_loop<torch::optim::Adam>(torch::optim::AdamOptions(0.01).weight_decay(0.01).amsgrad(true));
  expect_bits_of_the_plain_loop<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  expect_bits_of_the_plain_loop<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.001).momentum(0.9).centered(true).weight_decay(0.01));
  expect_bits_of_the_plain_loop<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05).weight_decay(0.01));
}

}  // namespace
}  // namespace lockstep
