#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <string>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/nn/weights_apart.h"
#include "lockstep/strategy/captured_step.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/variable.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/gpu_training.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"

// Replicas on several GPUs. On a machine with one, its logical replicas have separate copies of the weights, which
// exercises all copying and ordering of gradients and weights; tests that need two GPUs are skipped with a message.
namespace lockstep {
namespace {

struct Place {
  const char* name;
  Devices devices;
  ApartOptions apart = {};
};

/// With as many replicas as the first.
constexpr ApartOptions kApart{.weights = true}, kOutOfReach{.weights = true, .in_reach = false};
const Place kShared2{"Shared2", logical_gpus(2)}, kShared4{"Shared4", logical_gpus(4)};
const Place kApart2{"Apart2", logical_gpus(2), kApart}, kApart4{"Apart4", logical_gpus(4), kApart};
const Place kCopied2{"Copied2", logical_gpus(2), kOutOfReach}, kCopied4{"Copied4", logical_gpus(4), kOutOfReach};
const Place kTwoGpus{"TwoGpus", gpus(2)}, kTwoCopied{"TwoCopied", gpus(2), {.in_reach = false}};
const Place kTwoOnEach{"TwoOnEach", {"gpu:0/0", "gpu:0/1", "gpu:1/0", "gpu:1/1"}};
const Place kInterleaved{"Interleaved", {"gpu:1/0", "gpu:0/0", "gpu:1/1", "gpu:0/1"}};

bool needs_two(const Place& place) { return place.name[0] == 'T' || place.name[0] == 'I'; }

class SeveralGpus : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (needs_two(GetParam()) && visible_gpus() < 2) GTEST_SKIP() << "needs two GPUs";
    keep_weights_apart(GetParam().apart);
  }
  void TearDown() override { keep_weights_apart({}); }

  const Place& shared() const { return GetParam().devices.size() == 2 ? kShared2 : kShared4; }
};
INSTANTIATE_TEST_SUITE_P(, SeveralGpus,
                         testing::Values(kApart2, kApart4, kCopied2, kCopied4, kTwoGpus, kTwoCopied, kTwoOnEach,
                                         kInterleaved),
                         [](const auto& each) { return std::string(each.param.name); });

/// The result of 12 steps, with a replica that is late in each: its gradient, or its forward pass.
template <class Opt, class Options>
std::vector<at::Tensor> trained(const Place& place, const Options& options, bool scales, double clip) {
  keep_weights_apart(place.apart);
  torch::manual_seed(5);
  MirroredStrategy strategy({.devices = place.devices, .deterministic = true});
  auto model = strategy.make<Net>(1500, 0.3);
  auto optimizer = strategy.make_optimizer<Opt>(model, options);
  optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep);
  if (clip > 0) optimizer.set_clip_global_norm(clip);
  GradScaler scaler(strategy, {.initial_scale = 256, .growth_interval = 3});
  const int replicas = strategy.num_local_replicas();
  std::vector<at::Tensor> seen;
  torch::manual_seed(17);
  for (int step = 0; step < 12; ++step) {
    const Batch batch = random_batch(1 + (step * 5) % 13);
    const auto losses = strategy.run(
        [&](const Batch& mine) {
          const at::Device here = get_replica_context().device();
          at::Tensor x = mine.rows.to(here);
          if (my_id() == step % replicas) x = x.add(slow_zeros({1}).to(here));
          at::Tensor loss = average_loss(loss_per_row(model->forward(x), mine.labels.to(here)), batch.rows.size(0));
          if (my_id() == (step + 1) % replicas) loss = loss.add(slow_zeros({1}).to(here).sum());
          scales ? optimizer.minimize(loss, scaler) : optimizer.minimize(loss);
          return loss.detach();
        },
        split(strategy, batch));
    seen.push_back(strategy.reduce(ReduceOp::Sum, losses).cpu());
  }
  const auto all = strategy.run([&] { return model->parameters(); });
  for (const auto& of_replica : all)
    EXPECT_EQ(first_difference(on_host(of_replica), on_host(all[0])), "") << place.name;
  for (const at::Tensor& weights : on_host(model.parameters())) seen.push_back(weights);
  return seen;
}

TEST_P(SeveralGpus, TrainingHasTheBitsOfOneGpu) {
  const auto compare = [&](auto options, bool scales, double clip) {
    using Options = decltype(options);
    using Opt = std::conditional_t<std::is_same_v<Options, torch::optim::AdamOptions>, torch::optim::Adam,
                                   std::conditional_t<std::is_same_v<Options, torch::optim::SGDOptions>,
                                                      torch::optim::SGD, torch::optim::RMSprop>>;
    const auto expected = trained<Opt>(shared(), options, scales, clip);
    EXPECT_EQ(first_difference(trained<Opt>(GetParam(), options, scales, clip), expected), "");
  };
  compare(torch::optim::AdamOptions(0.01), false, 0);
  compare(torch::optim::SGDOptions(0.1).momentum(0.9), false, 0.05);
  compare(torch::optim::AdamOptions(0.01), true, 0.05);
  compare(torch::optim::RMSpropOptions(0.001), false, 0.05);
}

TEST_P(SeveralGpus, SparseRowsHaveTheBitsOfOneGpu) {
  const auto train = [](const Place& place) {
    keep_weights_apart(place.apart);
    torch::manual_seed(3);
    MirroredStrategy strategy({.devices = place.devices});
    auto model = strategy.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(5000, 3).sparse(true)); });
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        const at::Device here = get_replica_context().device();
        const at::Tensor rows = at::arange(3, at::TensorOptions(here).dtype(at::kLong)).mul(my_id() + 1).add(step);
        optimizer.minimize(model->forward(rows).square().sum().add(slow_zeros({1}).to(here).sum()));
      });
    }
    const auto all = strategy.run([&] { return model->weight.detach(); });
    for (const at::Tensor& weight : all) EXPECT_TRUE(same_bits(weight.cpu(), all[0].cpu()));
    return all[0].cpu();
  };
  EXPECT_TRUE(same_bits(train(GetParam()), train(shared())));
}

TEST_P(SeveralGpus, ACapturedStepTrainsOrSaysWhyNot) {
  const auto train = [](const Place& place, std::string& reason) {
    keep_weights_apart(place.apart);
    torch::manual_seed(19);
    MirroredStrategy strategy({.devices = place.devices, .deterministic = true});
    auto model = strategy.make<Net>(1500, 0.3);
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
    optimizer.set_clip_global_norm(0.05);
    auto step = strategy.capture([&](const Batch& mine) {
      const at::Device here = get_replica_context().device();
      const at::Tensor loss = average_loss(loss_per_row(model->forward(mine.rows.to(here)), mine.labels.to(here)), 24);
      optimizer.minimize(loss);
      return loss.detach();
    });
    const auto batch = split(strategy, gpu_batch(24));
    for (int i = 0; i < 8; ++i) step(batch);
    reason = step.reason();
    return on_host(model.parameters());
  };
  std::string reason, none;
  const auto expected = train(shared(), none);
  EXPECT_EQ(none, "");
  EXPECT_EQ(first_difference(train(GetParam(), reason), expected), "");
  EXPECT_EQ(reason, needs_two(GetParam()) ? "its replicas are on several GPUs" : "");
}

TEST_P(SeveralGpus, ACapturedStepComparesDigests) {
  MirroredStrategy strategy({.devices = GetParam().devices});
  auto model = strategy.make<Net>(70);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
  optimizer.set_digest({.every = 2});
  auto step = strategy.capture([&](const Batch& mine) {
    const at::Device here = get_replica_context().device();
    const at::Tensor loss = average_loss(loss_per_row(model->forward(mine.rows.to(here)), mine.labels.to(here)), 24);
    optimizer.minimize(loss);
    return loss.detach();
  });
  const auto batch = split(strategy, gpu_batch(24));
  for (int i = 0; i < 8; ++i) step(batch);
  EXPECT_EQ(step.was_replayed(), !needs_two(GetParam())) << step.reason();
  EXPECT_EQ(optimizer.steps(), 8);
  auto unused = strategy.run([&] { return model->unused; });  // no step writes it
  unused[1].data().fill_(7);
  step(batch);
  step(batch);  // whose digests differ
  EXPECT_THROW(step(batch), DataLoss);
}

TEST_P(SeveralGpus, SavedTrainingGoesOnToTheBit) {
  const TemporaryFolder folder;
  const std::string path = folder / "training.safetensors";
  torch::manual_seed(31);
  std::vector<Batch> batches;
  for (int i = 0; i < 8; ++i) batches.push_back(random_batch(12));
  const auto train = [&](const Place& place, std::size_t from, std::size_t to) {
    keep_weights_apart(place.apart);
    MirroredStrategy strategy({.devices = place.devices, .deterministic = true});
    auto model = strategy.make<Net>(1500);
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
    if (from > 0) load(path, model, optimizer);
    for (std::size_t i = from; i < to; ++i) {
      strategy.run(
          [&](const Batch& mine) {
            const at::Device here = get_replica_context().device();
            optimizer.minimize(
                average_loss(loss_per_row(model->forward(mine.rows.to(here)), mine.labels.to(here)), 12));
          },
          split(strategy, batches[i]));
    }
    save(path, model, optimizer);
    return on_host(model.parameters());
  };
  torch::manual_seed(1);
  const auto expected = train(shared(), 0, 8);
  torch::manual_seed(1);
  train(GetParam(), 0, 4);
  EXPECT_EQ(first_difference(train(GetParam(), 4, 8), expected), "");
}

TEST_P(SeveralGpus, CollectivesHaveTheBitsOfOneGpu) {
  const auto compute = [](const Place& place) {
    MirroredStrategy strategy({.devices = place.devices});
    std::vector<at::Tensor> seen;
    const auto results = strategy.run([&] {
      auto& replica = get_replica_context();
      const at::Device here = replica.device();
      std::vector<at::Tensor> mine;
      for (int round = 0; round < 8; ++round) {
        at::Tensor x = at::arange(70001, at::TensorOptions(here).dtype(at::kFloat)).mul(0.1 * (my_id() + 1)).add(round);
        if (my_id() == round % 2) x = x.add(slow_zeros({1}).to(here));
        mine.push_back(replica.all_reduce(ReduceOp::Sum, x));
        mine.push_back(replica.all_reduce(ReduceOp::Mean, x.view({70001, 1}).expand({70001, 3}).t()));
        mine.push_back(replica.all_gather(x, 0));
        x = at::full({70001}, -1e9, at::TensorOptions(here));  // into memory that others have just read
        mine.push_back(replica.merge_call(
            [](Strategy& inner, const PerReplica<at::Tensor>& all) { return inner.reduce(ReduceOp::Sum, all); },
            slow_zeros({5}).to(here).add(my_id())));
        const at::Tensor y = at::full({101}, 1.0 + my_id(), at::TensorOptions(here)).requires_grad_();
        replica.all_reduce(ReduceOp::Sum, y.mul(2)).sum().backward();
        mine.push_back(y.grad());
      }
      for (std::size_t i = 0; i < mine.size(); ++i) {
        if (i % 5 == 3) continue;  // the place of a merge function's result is its own choice
        EXPECT_EQ(mine[i].device(), here);
      }
      return mine;
    });
    for (const auto& of_replica : results) {
      for (const at::Tensor& each : of_replica) seen.push_back(each.cpu());
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      const auto parts = PerReplica<at::Tensor>::generate(results.size(), [&](std::size_t k) { return results[k][i]; });
      seen.push_back(strategy.reduce(ReduceOp::Mean, parts).cpu());
      seen.push_back(strategy.gather(parts, 0).cpu());
    }
    return seen;
  };
  EXPECT_EQ(first_difference(compute(GetParam()), compute(shared())), "");
}

TEST_P(SeveralGpus, VariablesHaveAComponentOnEachDevice) {
  MirroredStrategy strategy({.devices = GetParam().devices});
  auto total = strategy.make_variable(at::zeros({3}, kGpu), {.aggregation = Aggregation::Sum});
  auto mean = strategy.make_variable(at::zeros({3}, kGpu), {.aggregation = Aggregation::Mean});
  const int replicas = strategy.num_local_replicas();
  for (int round = 1; round <= 5; ++round) {
    const auto seen = strategy.run([&] {
      const at::Device here = get_replica_context().device();
      EXPECT_EQ(total.read().device(), here);
      total.assign_add(slow_zeros({3}).to(here).add(my_id()));
      mean.assign(at::full({3}, 1.0 * round, at::TensorOptions(here)));
      return total.read().add(mean.read());
    });
    for (const at::Tensor& each : seen)
      EXPECT_EQ(each[0].item<double>(), round * (replicas * (replicas - 1) / 2) + round);
  }
  total.assign(at::full({3}, 7.0, kGpu));
  for (const at::Tensor& component : total.values()) EXPECT_EQ(component[2].item<double>(), 7.0);
}

TEST_P(SeveralGpus, InputArrivesOnTheReplicasGpu) {
  MirroredStrategy strategy({.devices = GetParam().devices});
  constexpr std::int64_t kRows = 16, kWidth = 4099, kSteps = 20;
  const at::Tensor rows =
      at::arange(kRows * kSteps, at::kFloat).unsqueeze(1).expand({kRows * kSteps, kWidth}).contiguous();
  auto batches = strategy.distribute(data::from_tensor_slices(rows).batch(kRows), {.per_replica_buffer_size = 2});
  std::int64_t step = 0;
  for (const auto& batch : batches) {
    const auto parts = strategy.run(
        [&](const at::Tensor& mine) {
          EXPECT_EQ(mine.device(), get_replica_context().device());
          return mine.add(slow_zeros({1}).to(mine.device())).sum(at::kDouble);
        },
        batch);
    const double first = static_cast<double>(step) * kRows;
    EXPECT_EQ(strategy.reduce(ReduceOp::Sum, parts).item<double>(), (first * kRows + kRows * (kRows - 1) / 2) * kWidth);
    ++step;
  }
  EXPECT_EQ(step, kSteps);
}

TEST(AllGpus, AreTakenByDefault) {
  MirroredStrategy strategy;
  EXPECT_EQ(strategy.num_local_replicas(), visible_gpus());
}

}  // namespace
}  // namespace lockstep
