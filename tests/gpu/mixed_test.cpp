#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/strategy/captured_step.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/variable.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/plain_loop.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"

// Replicas on CPUs and GPUs of one strategy, against as many on CPUs. If streams matter, the GPU is kept busy.
namespace lockstep {
namespace {

using torch::optim::AdamOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

struct Place {
  const char* name;
  Devices devices;
};

class Mixed : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (GetParam().name[0] == 'T' && visible_gpus() < 2) GTEST_SKIP() << "needs two GPUs";
  }
  const Devices& devices() const { return GetParam().devices; }
  int replicas() const { return static_cast<int>(devices().size()); }
};
INSTANTIATE_TEST_SUITE_P(, Mixed,
                         testing::Values(Place{"GpuFirst", {"gpu:0", "cpu:0"}}, Place{"CpuFirst", {"cpu:0", "gpu:0"}},
                                         Place{"Alternating", {"gpu:0/0", "cpu:0", "gpu:0/1", "cpu:1"}},
                                         Place{"MoreCpus", {"cpu:0", "cpu:1", "gpu:0"}},
                                         Place{"TwoGpus", {"gpu:1", "cpu:0", "gpu:0"}}),
                         [](const auto& each) { return std::string(each.param.name); });

at::Device own_device() { return get_replica_context().device(); }

/// Zeros on the replica's device; on a GPU they come late.
at::Tensor late_zeros(at::IntArrayRef sizes) {
  return own_device().is_cuda() ? slow_zeros(sizes).to(own_device()) : at::zeros(sizes);
}

TEST_P(Mixed, AStrategySaysWhereItsReplicasAre) {
  MirroredStrategy strategy({.devices = devices()});
  const std::string text = strategy.describe();
  EXPECT_NE(text.find("CPU:0"), std::string::npos) << text;
  EXPECT_NE(text.find("GPU:0"), std::string::npos) << text;
  EXPECT_NE(dynamic_cast<ReductionToOneDevice*>(&strategy.cross_device_ops()), nullptr);
  const auto seen = strategy.run([] { return at::zeros({1}, own_device()); });
  for (std::size_t k = 0; k < seen.size(); ++k) EXPECT_EQ(seen[k].is_cpu(), devices()[k][0] == 'c') << "replica " << k;
}

std::vector<at::Tensor> collectives_of(const Devices& devices) {
  MirroredStrategy strategy({.devices = devices});
  std::vector<at::Tensor> seen;
  const auto results = strategy.run([] {
    auto& replica = get_replica_context();
    std::vector<at::Tensor> mine;
    for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kLong, at::kComplexFloat}) {
      const at::Tensor x = at::arange(70001).mul(my_id() + 1).to(own_device(), type).add(late_zeros({1}).to(type));
      mine.push_back(replica.all_reduce(ReduceOp::Sum, x));
      mine.push_back(replica.all_reduce(ReduceOp::Mean, x.view({70001, 1}).expand({70001, 2}).t()));
      mine.push_back(replica.all_gather(x.slice(0, 0, 3 + my_id()), 0));
    }
    const at::Tensor y = at::full({101}, 1.0 + my_id(), own_device()).requires_grad_();
    replica.all_reduce(ReduceOp::Sum, y.mul(2)).mul(late_zeros({1}).add(my_id())).sum().backward();
    mine.push_back(y.grad());
    const at::Tensor z = at::full({3}, 1.0 + my_id(), own_device()).requires_grad_();
    replica.all_gather(z.mul(2), 0).square().sum().backward();
    mine.push_back(z.grad());
    const IndexedSlices rows{at::full({2, 3}, 0.5 + my_id(), own_device()).add(late_zeros({1})),
                             at::arange(2).mul(my_id()).to(own_device()),
                             {9, 3}};
    const IndexedSlices all = replica.all_reduce(ReduceOp::Mean, rows);
    mine.push_back(all.values);
    mine.push_back(all.indices);
    for (const at::Tensor& each : mine) EXPECT_EQ(each.device(), own_device());
    return mine;
  });
  for (const auto& of_replica : results) {
    for (const at::Tensor& each : of_replica) seen.push_back(each.detach().cpu());
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    const auto parts =
        PerReplica<at::Tensor>::generate(results.size(), [&](std::size_t k) { return results[k][i].detach(); });
    const at::Tensor sum = strategy.reduce(ReduceOp::Sum, parts);
    EXPECT_EQ(sum.device(), parts[0].device());
    seen.push_back(sum.cpu());
    seen.push_back(strategy.gather(parts, 0).cpu());
  }
  return seen;
}

TEST_P(Mixed, CollectivesHaveTheBitsOfCpus) {
  EXPECT_EQ(first_difference(collectives_of(devices()), collectives_of(cpus(replicas()))), "");
}

TEST_P(Mixed, EveryOperationReducesAndBroadcasts) {
  for (const std::shared_ptr<CrossDeviceOps>& ops : std::vector<std::shared_ptr<CrossDeviceOps>>{
           nullptr, std::make_shared<OrderedCrossDeviceOps>(), std::make_shared<ReductionToOneDevice>("cpu:0"),
           std::make_shared<ReductionToOneDevice>("gpu:0")}) {
    MirroredStrategy strategy({.devices = devices(), .cross_device_ops = ops});
    const auto parts = strategy.run([] { return late_zeros({5}).add(my_id() + 1); });
    const double expected = replicas() * (replicas() + 1) / 2.0;
    EXPECT_EQ(strategy.reduce(ReduceOp::Sum, parts)[4].item<double>(), expected);
    EXPECT_EQ(strategy.reduce(ReduceOp::Sum, parts, /*axis=*/0).item<double>(), 5 * expected);
    EXPECT_EQ(strategy.extended().reduce_to(ReduceOp::Sum, parts, "cpu:0")[0][0].item<double>(), expected);
    const auto spread = strategy.extended().broadcast_to(at::arange(5), parts);
    for (std::size_t k = 0; k < spread.size(); ++k) {
      EXPECT_EQ(spread[k].device(), parts[k].device());
      EXPECT_EQ(spread[k][4].item<int>(), 4);
    }
  }
}

TEST_P(Mixed, AMergeFunctionUsesTheTensorsOfAll) {
  MirroredStrategy strategy({.devices = devices()});
  for (int round = 0; round < 5; ++round) {
    const auto sums = strategy.run([&] {
      const at::Tensor mine = late_zeros({1001}).add(my_id() + round);
      const at::Tensor sum = get_replica_context().merge_call(
          [](Strategy&, const PerReplica<at::Tensor>& all) {
            at::Tensor total = slow_zeros({1001});  // by the leader, on the GPU
            for (const at::Tensor& each : all) total = total.add(each.to(kGpu));
            return PerReplica<at::Tensor>::generate(
                all.size(), [&](std::size_t k) { return total.to(all[k].device(), /*non_blocking=*/true); });
          },
          mine);
      EXPECT_EQ(sum.device(), own_device());
      return sum.add(0).sum();
    });
    for (const at::Tensor& sum : sums)
      EXPECT_EQ(sum.item<double>(), 1001.0 * (replicas() * (replicas() - 1) / 2 + replicas() * round));
  }
}

TEST_P(Mixed, VariablesHaveAComponentOnEachDevice) {
  MirroredStrategy strategy({.devices = devices()});
  Variable total = strategy.make_variable(at::zeros({3}), {.name = "total", .aggregation = Aggregation::Sum});
  Variable mean = strategy.make_variable(at::zeros({3}, kGpu), {.aggregation = Aggregation::Mean});
  Variable first = strategy.make_variable(at::zeros({3}), {.aggregation = Aggregation::OnlyFirstReplica});
  Variable count = strategy.make_variable(
      at::zeros({}), {.synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum});
  Variable chosen = strategy.make_variable(
      at::zeros({3}), {.synchronization = Synchronization::OnRead, .aggregation = Aggregation::OnlyFirstReplica});
  const double triangle = replicas() * (replicas() - 1) / 2.0;
  for (int round = 1; round <= 5; ++round) {
    const auto seen = strategy.run([&] {
      EXPECT_EQ(total.read().device(), own_device());
      total.assign_add(late_zeros({3}).add(my_id()));
      mean.assign(late_zeros({3}).add(1.0 * round));
      first.assign(late_zeros({3}).add(my_id() == 0 ? round : -1));
      count.assign_add(late_zeros({}).add(1.0 + my_id()));
      chosen.assign(late_zeros({3}).add(my_id() == 0 ? round : -5));
      at::Tensor of_first;
      {
        const SyncOnReadScope together;
        of_first = chosen;
      }
      chosen.assign(at::full({3}, -7.0, own_device()));  // the others must not see this any more
      EXPECT_EQ(of_first.device(), own_device());
      return total.read().add(mean.read()).add(first.read()).add(of_first);
    });
    for (const at::Tensor& each : seen) EXPECT_EQ(each[0].item<double>(), round * triangle + 3 * round);
    EXPECT_EQ(count.read().item<double>(), round * (triangle + replicas()));
  }
  for (const at::Device& from : {at::Device(at::kCPU), kGpu}) {
    total.assign(at::full({3}, 7.0, from));
    for (const at::Tensor& component : total.values()) EXPECT_EQ(component[2].item<double>(), 7.0);
  }
  const at::Tensor state = total.state();
  total.assign(at::zeros({3}));
  total.load_state(state);
  for (const at::Tensor& component : total.values()) EXPECT_EQ(component[1].item<double>(), 7.0);
  std::ostringstream printed;
  printed << total << count;
  EXPECT_NE(printed.str().find("total"), std::string::npos) << printed.str();
}

TEST_P(Mixed, InputArrivesOnTheReplicasDevice) {
  MirroredStrategy strategy({.devices = devices()});
  constexpr std::int64_t kRows = 12, kWidth = 4099, kSteps = 20;
  const at::Tensor rows =
      at::arange(kRows * kSteps, at::kFloat).unsqueeze(1).expand({kRows * kSteps, kWidth}).contiguous();
  auto batches = strategy.distribute(data::from_tensor_slices(rows).batch(kRows), {.per_replica_buffer_size = 2});
  std::int64_t step = 0;
  for (const auto& batch : batches) {
    const auto parts = strategy.run(
        [&](const at::Tensor& mine) {
          EXPECT_EQ(mine.device(), own_device());
          EXPECT_EQ(mine.size(0), kRows / replicas());
          return mine.add(late_zeros({1})).sum(at::kDouble);
        },
        batch);
    const double before = static_cast<double>(step) * kRows;
    EXPECT_EQ(strategy.reduce(ReduceOp::Sum, parts).item<double>(),
              (before * kRows + kRows * (kRows - 1) / 2) * kWidth);
    ++step;
  }
  EXPECT_EQ(step, kSteps);
}

struct Recipe {
  std::function<void(MirroredOptimizerBase&)> settings = [](MirroredOptimizerBase&) {};
  bool scales = false;
};

template <class Model>
void expect_equal_copies(Strategy& strategy, Model& model) {
  const auto all = strategy.run([&] { return model->parameters(); });
  for (std::size_t k = 0; k < all.size(); ++k) {
    EXPECT_EQ(all[k][0].device(), strategy.replica_context(static_cast<int>(k)).device());
    EXPECT_EQ(first_difference(on_host(all[k]), on_host(all[0])), "") << "replica " << k;
  }
}

/// The result of 9 steps with GPUs that are late: with their gradients, or with their forward passes.
template <class Opt, class Options>
std::vector<at::Tensor> trained(const Devices& devices, at::ScalarType type, const Options& options,
                                const Recipe& recipe) {
  torch::manual_seed(5);
  MirroredStrategy strategy({.devices = devices});
  auto model = strategy.make([&] {
    auto net = std::make_shared<Net>(1500);
    net->to(type);
    return net;
  });
  auto optimizer = strategy.make_optimizer<Opt>(model, options);
  recipe.settings(optimizer);
  GradScaler scaler(strategy, {.initial_scale = 256, .growth_interval = 3});
  torch::manual_seed(17);
  for (int step = 0; step < 9; ++step) {
    const Batch batch = random_batch(1 + (step * 5) % 13, type);
    strategy.run(
        [&](const Batch& mine) {
          at::Tensor x = mine.rows.to(own_device());
          if (step % 2 == 0) x = x.add(late_zeros({1}).to(type));
          at::Tensor loss =
              average_loss(loss_per_row(model->forward(x), mine.labels.to(own_device())), batch.rows.size(0));
          if (step % 2 == 1) loss = loss.add(late_zeros({1}).to(type).sum());
          recipe.scales ? optimizer.minimize(loss, scaler) : optimizer.minimize(loss);
        },
        split(strategy, batch));
    expect_equal_copies(strategy, model);
  }
  return on_host(model.parameters());
}

template <class Opt, class Options>
void expect_training_of_cpus(const Devices& devices, const Options& options, const Recipe& recipe = {}) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const auto expected = trained<Opt>(cpus(static_cast<int>(devices.size())), type, options, recipe);
    const auto weights = trained<Opt>(devices, type, options, recipe);
    EXPECT_LT(largest_relative_difference(weights, expected), type == at::kDouble ? 1e-10 : 2e-3) << type;
  }
}

TEST_P(Mixed, TrainingFollowsThatOfCpus) {
  expect_training_of_cpus<torch::optim::SGD>(devices(), SGDOptions(0.1).momentum(0.9).weight_decay(1e-2));
  expect_training_of_cpus<torch::optim::Adam>(devices(), AdamOptions(0.01).weight_decay(1e-2));
  expect_training_of_cpus<torch::optim::RMSprop>(devices(), RMSpropOptions(0.001).weight_decay(1e-2));
}

TEST_P(Mixed, SettingsAreThoseOfCpus) {
  const auto with = [&](const std::function<void(MirroredOptimizerBase&)>& settings, bool scales = false) {
    expect_training_of_cpus<torch::optim::SGD>(devices(), SGDOptions(0.1), {settings, scales});
  };
  with([](auto& optimizer) { optimizer.set_clip_global_norm(0.05); });
  with([](auto& optimizer) { optimizer.set_clip_value(0.001); });
  with([](auto& optimizer) { optimizer.set_accumulate(3); });
  with([](auto& optimizer) { optimizer.set_digest({.every = 2}); });
  with([](auto& optimizer) { optimizer.set_non_finite_policy(NonFinitePolicy::Raise); });
  with([](auto& optimizer) { optimizer.set_reduce_op(ReduceOp::Mean); });
  with([](auto& optimizer) { optimizer.set_clip_global_norm(0.05); }, /*scales=*/true);
}

TEST_P(Mixed, AllCopiesSkipAStep) {
  MirroredStrategy strategy({.devices = devices()});
  auto model = strategy.make<Net>(1500);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep);
  for (int bad = -1; bad < replicas(); ++bad) {
    const auto before = on_host(model.parameters());
    strategy.run([&] {
      const double factor = my_id() == bad ? std::numeric_limits<double>::infinity() : 1.0;
      optimizer.minimize(model->forward(at::ones({2, 9}, own_device())).sum().mul(factor));
    });
    EXPECT_EQ(optimizer.skipped_steps(), bad + 1);
    if (bad >= 0) {
      EXPECT_EQ(first_difference(on_host(model.parameters()), before), "");
    }
    expect_equal_copies(strategy, model);
  }
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST_P(Mixed, PartsOfAStepSeeTheWholeGradient) {
  const auto train = [](const Devices& places) {
    torch::manual_seed(3);
    MirroredStrategy strategy({.devices = places});
    auto model = strategy.make<Net>(1500);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
    const auto seen = strategy.run([&] {
      optimizer.backward(model->forward(at::ones({2, 9}, own_device()).mul(my_id() + 1)).square().sum());
      optimizer.reduce_gradients();
      optimizer.clip_global_norm(0.5);
      std::vector<at::Tensor> gradients;
      for (const auto& item : optimizer.gradients()) {
        EXPECT_EQ(item.value().device(), own_device());
        gradients.push_back(item.value().cpu());
      }
      optimizer.step();
      return gradients;
    });
    for (std::size_t k = 1; k < seen.size(); ++k) EXPECT_EQ(first_difference(seen[k], seen[0]), "");
    expect_equal_copies(strategy, model);
    return seen[0];
  };
  EXPECT_LT(largest_relative_difference(train(devices()), train(cpus(replicas()))), 2e-3);
}

TEST_P(Mixed, SparseRowsAreThoseOfCpus) {
  const auto train = [](const Devices& places, auto options) {
    using Opt =
        std::conditional_t<std::is_same_v<decltype(options), SGDOptions>, torch::optim::SGD, torch::optim::Adagrad>;
    torch::manual_seed(3);
    MirroredStrategy strategy({.devices = places});
    auto model = strategy.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(5000, 3).sparse(true)); });
    auto optimizer = strategy.make_optimizer<Opt>(model, options);
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        const at::Tensor rows = at::arange(3).mul(my_id() + 1).add(step).to(own_device());
        optimizer.minimize(model->forward(rows).square().sum().add(late_zeros({1}).sum()));
      });
      expect_equal_copies(strategy, model);
    }
    return on_host(model.parameters());
  };
  const auto compare = [&](auto options) {
    EXPECT_LT(largest_relative_difference(train(devices(), options), train(cpus(replicas()), options)), 1e-5);
  };
  compare(SGDOptions(0.1));
  compare(torch::optim::AdagradOptions(0.1));
}

TEST_P(Mixed, SyncBatchNormIsThatOfCpus) {
  const auto train = [](const Devices& places) {
    torch::manual_seed(2);
    MirroredStrategy strategy({.devices = places});
    auto model = strategy.make<SmallNet>();
    nn::convert_sync_batch_norm(model);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
    torch::manual_seed(9);
    for (int i = 0; i < 3; ++i) {
      const Batch batch = random_batch(24);
      strategy.run(
          [&](const Batch& mine) {
            const at::Tensor guess = model->forward(mine.rows.to(own_device()));
            optimizer.minimize(average_loss(loss_per_row(guess, mine.labels.to(own_device())), 24));
          },
          split(strategy, batch));
    }
    auto all = on_host(model.parameters());
    all.push_back(model.named_buffers()["norm.running_mean"].cpu());
    return all;
  };
  EXPECT_LT(largest_relative_difference(train(devices()), train(cpus(replicas()))), 1e-4);
}

TEST_P(Mixed, SavedTrainingGoesOnToTheBit) {
  const TemporaryFolder folder;
  const std::string path = folder / "training.safetensors";
  torch::manual_seed(31);
  std::vector<Batch> batches;
  for (int i = 0; i < 8; ++i) batches.push_back(random_batch(12));
  const auto train = [&](std::size_t from, std::size_t to) {
    torch::manual_seed(1);
    MirroredStrategy strategy({.devices = devices(), .deterministic = true});
    auto model = strategy.make<Net>(1500);
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
    if (from > 0) load(path, model, optimizer);
    for (std::size_t i = from; i < to; ++i) {
      strategy.run(
          [&](const Batch& mine) {
            const at::Tensor guess = model->forward(mine.rows.to(own_device()));
            optimizer.minimize(average_loss(loss_per_row(guess, mine.labels.to(own_device())), 12));
          },
          split(strategy, batches[i]));
    }
    save(path, model, optimizer);
    std::ostringstream printed;
    printed << model;
    EXPECT_NE(printed.str().find("MirroredModule of"), std::string::npos);
    return on_host(model.parameters());
  };
  const auto expected = train(0, 8);
  train(0, 4);
  EXPECT_EQ(first_difference(train(4, 8), expected), "");
}

TEST_P(Mixed, ChangedWeightsReachAllCopies) {
  MirroredStrategy strategy({.devices = devices()});
  auto model = strategy.make<SmallNet>(600);
  const auto expect_everywhere = [&](double value) {
    for (const at::Tensor& weight : strategy.run([&] { return model->first->weight.detach(); }))
      EXPECT_TRUE(weight.eq(value).all().item<bool>()) << weight.device() << " has not " << value;
  };
  model.update([](SmallNet& net) { net.first->weight.fill_(2); });
  expect_everywhere(2);
  {
    const torch::NoGradGuard no_grad;
    model->first->weight.fill_(3);
  }
  expect_everywhere(3);
  strategy.run([&] {
    get_replica_context().merge_call([&](Strategy&) {
      const torch::NoGradGuard no_grad;
      model->first->weight.copy_(slow_zeros({600, 9}).add(4));
    });
  });
  expect_everywhere(4);
}

TEST_P(Mixed, ACapturedStepRunsPlainly) {
  MirroredStrategy strategy({.devices = devices()});
  int runs = 0;
  auto step = strategy.capture([&] {
    if (my_id() == 0) ++runs;
    return late_zeros({1}).add(my_id());
  });
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(runs, 5);
  EXPECT_EQ(step.reason(), "its replicas are on CPUs and GPUs");
}

TEST_P(Mixed, AFailureEndsTheRunAndTheNextOneWorks) {
  MirroredStrategy strategy({.devices = devices()});
  for (int bad = 0; bad < replicas(); ++bad) {
    EXPECT_THROW(strategy.run([&] {
      const at::Tensor mine = late_zeros({3});
      if (my_id() == bad) throw std::runtime_error("no data");
      get_replica_context().all_reduce(ReduceOp::Sum, mine);
    }),
                 std::runtime_error);
    const auto sums =
        strategy.run([] { return get_replica_context().all_reduce(ReduceOp::Sum, late_zeros({3}).add(1)); });
    for (const at::Tensor& sum : sums) EXPECT_EQ(sum[1].item<double>(), replicas());
  }
}

TEST_P(Mixed, EachReplicaDrawsItsOwnNumbers) {
  const auto draw = [&] {
    MirroredStrategy strategy({.devices = devices(), .seed = 3});
    std::vector<at::Tensor> drawn;
    for (const at::Tensor& each :
         strategy.run([] { return torch::dropout(torch::rand({64}, own_device()), 0.5, true); }))
      drawn.push_back(each.cpu());
    return drawn;
  };
  const auto drawn = draw();
  EXPECT_EQ(first_difference(draw(), drawn), "");
  for (std::size_t k = 1; k < drawn.size(); ++k) EXPECT_FALSE(same_bits(drawn[k], drawn[0]));
}

}  // namespace
}  // namespace lockstep
