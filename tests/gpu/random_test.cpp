#include <ATen/Context.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <chrono>
#include <thread>
#include <tuple>

#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"

namespace lockstep {
namespace {

/// One call of each kind: with a generator argument, without one, factories, in place, and on the CPU.
std::vector<at::Tensor> draw() {
  const at::Tensor ones = at::ones({513}, kGpu);
  const at::TensorOptions half = at::TensorOptions(kGpu).dtype(at::kHalf);
  const at::Tensor q = at::full({2, 2, 16, 16}, 0.1, half);
  at::Tensor noise = at::ones({17}, kGpu);
  return {at::rand({65}, kGpu),
          at::randn({65}, kGpu),
          at::dropout(ones, 0.5, true),
          at::randint(1000, {33}, kGpu),
          at::bernoulli(ones.mul(0.5)),
          at::dropout(ones, 0.25, true),
          noise.uniform_(),
          at::randperm(50, kGpu),
          at::normal(ones, ones),
          at::multinomial(ones, 5),
          at::scaled_dot_product_attention(q, q, q, {}, 0.5),
          lstm_with_dropout(),
          lstm_with_dropout(),
          at::rand_like(at::ones({5}), at::TensorOptions(kGpu)),
          at::rand_like(ones),
          at::randn({5})};
}

std::vector<at::Tensor> drawn_by(int replicas, std::uint64_t seed, int rounds = 3) {
  torch::manual_seed(seed);
  MirroredStrategy strategy(on_gpu(replicas));
  std::vector<at::Tensor> all;
  for (int round = 0; round < rounds; ++round) {
    for (const auto& mine : strategy.run([] { return draw(); })) {
      for (const at::Tensor& each : mine) all.push_back(each.cpu());
    }
  }
  return all;
}

/// `.deterministic` holds for the process.
struct DeterministicUntilHere {
  ~DeterministicUntilHere() {
    at::globalContext().setDeterministicAlgorithms(false, false);
    at::globalContext().setDeterministicCuDNN(false);
  }
};

class GpuRandom : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Replicas, GpuRandom, testing::Values(1, 2, 4));

TEST_P(GpuRandom, NumbersDependOnTheSeedAloneAndNotOnTiming) {
  const auto first = drawn_by(GetParam(), 7);
  for (int again = 0; again < 10; ++again) EXPECT_EQ(first_difference(drawn_by(GetParam(), 7), first), "");
  EXPECT_NE(first_difference(drawn_by(GetParam(), 8), first), "");
}

TEST(GpuRandomOfOne, ReplicaDrawsWhatAPlainProgramDraws) {
  torch::manual_seed(7);
  std::vector<at::Tensor> plain;
  for (int round = 0; round < 3; ++round) {
    for (const at::Tensor& each : draw()) plain.push_back(each.cpu());
  }
  EXPECT_EQ(first_difference(drawn_by(1, 7), plain), "");
}

TEST_P(GpuRandom, SeveralReplicasDrawOtherNumbersThanAPlainProgram) {
  if (GetParam() == 1) GTEST_SKIP() << "one replica is the plain program";
  torch::manual_seed(7);
  const auto plain = on_host(draw());
  const auto ours = drawn_by(GetParam(), 7, 1);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_FALSE(same_bits(ours[i], plain[i])) << "kind #" << i;
}

TEST_P(GpuRandom, ReplicasDrawDifferentNumbers) {
  MirroredStrategy strategy(on_gpu(GetParam()));
  const auto drawn = strategy.run([] { return draw(); });
  for (std::size_t k = 1; k < drawn.size(); ++k) {
    for (std::size_t i = 0; i < drawn[k].size(); ++i)
      EXPECT_FALSE(same_bits(drawn[k][i].cpu(), drawn[0][i].cpu())) << "kind #" << i << " of replica " << k;
  }
}

TEST_P(GpuRandom, SetSeedStartsAgain) {
  MirroredStrategy strategy(on_gpu(GetParam()));
  const auto numbers = [&] {
    return on_host(strategy.run([] { return at::randn({9}, kGpu).sum() + lstm_with_dropout(); }).values());
  };
  strategy.set_seed(3);
  const auto first = numbers();
  EXPECT_NE(first_difference(numbers(), first), "");
  strategy.set_seed(3);
  EXPECT_EQ(first_difference(numbers(), first), "");
}

TEST_P(GpuRandom, TheCallersNumbersAreLeftAlone) {
  if (GetParam() == 1) GTEST_SKIP() << "one replica draws from the caller's generators";
  MirroredStrategy strategy(on_gpu(GetParam()));
  torch::manual_seed(5);
  const at::Tensor expected = at::randn({9}, kGpu).cpu();
  torch::manual_seed(5);
  strategy.run([] { draw(); });
  EXPECT_TRUE(same_bits(at::randn({9}, kGpu).cpu(), expected));
}

/// cuDNN's state belongs to a GPU rather than a thread.
TEST_P(GpuRandom, DropoutOfRecurrentLayersIsTheReplicasOwn) {
  const auto drawn = [&](int late) {
    torch::manual_seed(11);
    MirroredStrategy strategy(on_gpu(GetParam()));
    std::vector<at::Tensor> all;
    for (int round = 0; round < 4; ++round) {
      const auto each = strategy.run([&] {
        if (my_id() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return lstm_with_dropout();
      });
      for (const at::Tensor& output : each) all.push_back(output.cpu());
    }
    return all;
  };
  const auto first = drawn(-1);
  for (int late = 0; late < GetParam(); ++late) EXPECT_EQ(first_difference(drawn(late), first), "") << late;
}

TEST_P(GpuRandom, ASeedBetweenRunsThatUseRecurrentDropoutIsWarnedOf) {
  MirroredStrategy strategy(on_gpu(GetParam()));
  strategy.run([] { lstm_with_dropout(); });
  torch::manual_seed(17);
  const LoggedLines log;
  strategy.run([] { lstm_with_dropout(); });
  EXPECT_EQ(log.count("manual_seed"), GetParam() == 1 ? 0 : 1);
}

TEST_P(GpuRandom, DropoutOfRecurrentLayersInInferenceModeSpoilsNoTraining) {
  MirroredStrategy strategy(on_gpu(GetParam()));
  auto model = strategy.make([] { return torch::nn::LSTM(torch::nn::LSTMOptions(8, 16).num_layers(2).dropout(0.5)); });
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
  const auto output = [&] { return std::get<0>(model->forward(at::ones({3, 4, 8}, kGpu))); };
  {
    const c10::InferenceMode inference;
    strategy.run([&] { output(); });
  }
  strategy.run([&] { optimizer.minimize(output().sum()); });
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST_P(GpuRandom, AnLstmWithDropoutTrainsTheSameFromRunToRun) {
  const DeterministicUntilHere until_here;
  const auto trained = [&] {
    torch::manual_seed(13);
    MirroredOptions options = on_gpu(GetParam());
    options.deterministic = true;
    MirroredStrategy strategy(options);
    auto model = strategy.make(
        [] { return torch::nn::LSTM(torch::nn::LSTMOptions(8, 16).num_layers(2).dropout(0.5).batch_first(true)); });
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
    for (int step = 0; step < 8; ++step) {
      strategy.run([&] {
        const at::Tensor x = at::randn({6, 5, 8}, kGpu);
        optimizer.minimize(average_loss(std::get<0>(model->forward(x)).square().sum({1, 2})));
      });
    }
    return on_host(model.parameters());
  };
  const auto first = trained();
  for (int again = 0; again < 3; ++again) EXPECT_EQ(first_difference(trained(), first), "");
}

/// Rows that many threads add to in any order: LibTorch's default differs from call to call.
TEST_P(GpuRandom, DeterministicSumsOfRowsAreBitwiseEqual) {
  const DeterministicUntilHere until_here;
  MirroredOptions options = on_gpu(GetParam());
  options.deterministic = true;
  MirroredStrategy strategy(options);
  const at::Tensor rows = at::randn({200'000, 3}, kGpu);
  const at::Tensor places = at::randint(7, {200'000}, at::TensorOptions(kGpu).dtype(at::kLong));
  const auto sums = [&] {
    return strategy.run([&] { return at::zeros({7, 3}, kGpu).index_add(0, places, rows); })[0].cpu();
  };
  const at::Tensor first = sums();
  for (int again = 0; again < 10; ++again) EXPECT_TRUE(at::equal(sums(), first));
}

}  // namespace
}  // namespace lockstep
