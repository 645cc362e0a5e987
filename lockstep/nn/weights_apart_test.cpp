#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <functional>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/nn/weights_apart.h"
#include "tests/support/plain_loop.h"
#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

// Replicas with separate copies of the weights, as on several GPUs, against replicas that share one: the same bits.
namespace lockstep {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

/// While it exists, models are made with a copy of the weights per replica.
class Apart {
 public:
  explicit Apart(bool apart) : before_(weights_apart()) {
    keep_weights_apart({.weights = apart, .in_reach = before_.in_reach, .mixed = before_.mixed});
  }
  ~Apart() { keep_weights_apart(before_); }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

 private:
  const ApartOptions before_;
};

std::vector<at::Tensor> host_copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().cpu().clone());
  return copies;
}

template <class Model>
void expect_equal_copies(Strategy& strategy, Model& model, bool are_apart = true) {
  const auto all = strategy.run([&] { return model->parameters(); });
  for (std::size_t k = 1; k < all.size(); ++k) {
    EXPECT_EQ(all[k][0].const_data_ptr() != all[0][0].const_data_ptr(), are_apart);
    EXPECT_EQ(first_difference(host_copies(all[k]), host_copies(all[0])), "") << "replica " << k;
  }
}

struct Recipe {
  std::function<void(MirroredOptimizerBase&)> settings = [](MirroredOptimizerBase&) {};
  bool scales = false;
};

Batch batch_here(std::int64_t rows) {
  const Batch batch = random_batch(rows);
  return {here(batch.rows), here(batch.labels)};
}

/// The weights after 9 steps, which cut the larger ones into segments of all replicas.
template <class Opt, class Options>
std::vector<at::Tensor> trained(int replicas, bool apart, const Options& options, const Recipe& recipe = {}) {
  const Apart these(apart);
  torch::manual_seed(5);
  MirroredStrategy strategy({.devices = test_devices(replicas), .deterministic = true});
  auto model = strategy.make([] { return std::make_shared<Net>(/*hidden=*/1500, /*dropout=*/0.3); });
  auto optimizer = strategy.make_optimizer<Opt>(model, options);
  recipe.settings(optimizer);
  GradScaler scaler(strategy, {.initial_scale = 1024, .growth_interval = 2});
  torch::manual_seed(17);
  for (int step = 0; step < 9; ++step) {
    const Batch batch = batch_here(1 + (step * 5) % 13);
    if (!recipe.scales) {
      mirrored_step(strategy, model, optimizer, batch);
      continue;
    }
    strategy.run(
        [&](const Batch& mine) {
          const at::Tensor losses = loss_per_row(model->forward(mine.rows), mine.labels);
          optimizer.minimize(average_loss(losses, batch.rows.size(0)), scaler);
        },
        split(strategy, batch));
  }
  expect_equal_copies(strategy, model, apart);
  return host_copies(model.parameters());
}

struct Copies {
  int replicas;
  bool mixed = false;  ///< as on CPUs and GPUs together
};

class WeightsApart : public testing::TestWithParam<Copies> {
 protected:
  void SetUp() override {
    if (GetParam().mixed && test_device().is_cuda()) GTEST_SKIP() << "gpu_test has CPUs and GPUs in one strategy";
    keep_weights_apart({.mixed = GetParam().mixed});
  }
  void TearDown() override { keep_weights_apart({}); }
  const int replicas = GetParam().replicas;

  template <class Opt, class Options>
  void expect_same_bits(const Options& options, const Recipe& recipe = {}) const {
    const auto shared = trained<Opt>(replicas, false, options, recipe);
    const auto apart = trained<Opt>(replicas, true, options, recipe);
    EXPECT_EQ(first_difference(apart, shared), "");
  }
};
INSTANTIATE_TEST_SUITE_P(Replicas, WeightsApart,
                         testing::Values(Copies{2}, Copies{3}, Copies{4}, Copies{3, /*mixed=*/true}),
                         [](const auto& each) {
                           return (each.param.mixed ? "Mixed" : "") + std::to_string(each.param.replicas);
                         });

TEST_P(WeightsApart, EveryOptimizerGivesTheBitsOfOneCopy) {
  expect_same_bits<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9));
  expect_same_bits<torch::optim::Adam>(AdamOptions(0.01));
  expect_same_bits<torch::optim::Adam>(AdamOptions(0.01).amsgrad(true));
  expect_same_bits<torch::optim::AdamW>(AdamWOptions(0.01));
  expect_same_bits<torch::optim::RMSprop>(RMSpropOptions(0.001).momentum(0.9));
}

TEST_P(WeightsApart, SettingsGiveTheBitsOfOneCopy) {
  const auto with = [&](const std::function<void(MirroredOptimizerBase&)>& settings) {
    expect_same_bits<torch::optim::Adam>(AdamOptions(0.01), {.settings = settings});
  };
  with([](auto& optimizer) { optimizer.set_clip_global_norm(0.05); });
  with([](auto& optimizer) { optimizer.set_clip_value(0.001); });
  with([](auto& optimizer) { optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep); });
  with([](auto& optimizer) { optimizer.set_non_finite_policy(NonFinitePolicy::Raise); });
  with([](auto& optimizer) { optimizer.set_accumulate(3); });
  with([](auto& optimizer) { optimizer.set_digest({.every = 2}); });
  with([](auto& optimizer) { optimizer.set_reduce_op(ReduceOp::Mean); });
  expect_same_bits<torch::optim::RMSprop>(RMSpropOptions(0.001), {.settings = [](auto& optimizer) {
                                            optimizer.set_clip_global_norm(0.05);
                                            optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep);
                                          }});
}

TEST_P(WeightsApart, AScaledLossGivesTheBitsOfOneCopy) {
  expect_same_bits<torch::optim::Adam>(AdamOptions(0.01), {.scales = true});
  expect_same_bits<torch::optim::SGD>(
      SGDOptions(0.1), {.settings = [](auto& optimizer) { optimizer.set_clip_global_norm(0.05); }, .scales = true});
}

/// A gradient that is not finite on the last replica only.
TEST_P(WeightsApart, AllCopiesSkipAStep) {
  const Apart these(true);
  MirroredStrategy strategy({.devices = test_devices(replicas)});
  auto model = strategy.make([] { return std::make_shared<Net>(1500); });
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep);
  mirrored_step(strategy, model, optimizer, batch_here(8));
  const auto before = host_copies(model.parameters());
  strategy.run([&] {
    const double factor = my_id() == replicas - 1 ? std::numeric_limits<double>::infinity() : 1.0;
    optimizer.minimize(model->forward(here(torch::ones({2, 9}))).sum().mul(factor));
  });
  EXPECT_EQ(optimizer.skipped_steps(), 1);
  EXPECT_EQ(optimizer.steps(), 1);
  EXPECT_EQ(first_difference(host_copies(model.parameters()), before), "");
  expect_equal_copies(strategy, model);
  mirrored_step(strategy, model, optimizer, batch_here(8));
  EXPECT_EQ(optimizer.steps(), 2);
  expect_equal_copies(strategy, model);
}

TEST_P(WeightsApart, SyncBatchNormGivesTheBitsOfOneCopy) {
  const auto train = [&](bool apart) {
    const Apart these(apart);
    torch::manual_seed(2);
    MirroredStrategy strategy({.devices = test_devices(replicas), .deterministic = true});
    auto model = strategy.make([] { return std::make_shared<SmallNet>(); });
    nn::convert_sync_batch_norm(model);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
    torch::manual_seed(9);
    for (int i = 0; i < 3; ++i) mirrored_step(strategy, model, optimizer, batch_here(24));
    auto all = host_copies(model.parameters());
    all.push_back(strategy.run([&] { return model->norm->running_mean.clone(); })[0].cpu());
    return all;
  };
  EXPECT_EQ(first_difference(train(true), train(false)), "");
}

TEST_P(WeightsApart, SparseGradientsGiveTheBitsOfOneCopy) {
  const auto train = [&](bool apart, auto options) {
    using Opt =
        std::conditional_t<std::is_same_v<decltype(options), SGDOptions>, torch::optim::SGD, torch::optim::Adagrad>;
    const Apart these(apart);
    torch::manual_seed(3);
    MirroredStrategy strategy({.devices = test_devices(replicas)});
    auto model = strategy.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(5000, 3).sparse(true)); });
    auto optimizer = strategy.make_optimizer<Opt>(model, options);
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        const at::Tensor rows = torch::arange(3).mul(my_id() + 1).add(step);
        optimizer.minimize(model->forward(here(rows)).square().sum());
      });
    }
    expect_equal_copies(strategy, model, apart);
    return host_copies(model.parameters());
  };
  EXPECT_EQ(first_difference(train(true, SGDOptions(0.1)), train(false, SGDOptions(0.1))), "");
  EXPECT_EQ(first_difference(train(true, AdagradOptions(0.1)), train(false, AdagradOptions(0.1))), "");
}

TEST_P(WeightsApart, PartsOfAStepSeeTheWholeGradient) {
  const auto train = [&](bool apart) {
    const Apart these(apart);
    torch::manual_seed(3);
    MirroredStrategy strategy({.devices = test_devices(replicas), .deterministic = true});
    auto model = strategy.make([] { return std::make_shared<Net>(1500); });
    auto optimizer = strategy.make_optimizer<torch::optim::AdamW>(model, AdamWOptions(0.01));
    const auto seen = strategy.run([&] {
      optimizer.backward(model->forward(here(torch::ones({2, 9}).mul(my_id() + 1))).square().sum());
      optimizer.reduce_gradients();
      const double norm = optimizer.clip_global_norm(0.5);
      std::vector<at::Tensor> gradients{torch::scalar_tensor(norm, at::kDouble)};
      for (const auto& item : optimizer.gradients()) {
        EXPECT_EQ(item.value().device(), get_replica_context().device());
        gradients.push_back(item.value().cpu());
      }
      optimizer.step();
      return gradients;
    });
    for (std::size_t k = 1; k < seen.size(); ++k) EXPECT_EQ(first_difference(seen[k], seen[0]), "");
    expect_equal_copies(strategy, model, apart);
    auto all = seen[0];
    for (const at::Tensor& weights : host_copies(model.parameters())) all.push_back(weights);
    return all;
  };
  EXPECT_EQ(first_difference(train(true), train(false)), "");
}

TEST_P(WeightsApart, SavedTrainingGoesOnWithOneCopyAndBack) {
  const TemporaryFolder folder;
  torch::manual_seed(31);
  std::vector<Batch> batches;
  for (int i = 0; i < 9; ++i) batches.push_back(batch_here(12));
  const auto train = [&](bool apart, std::size_t from, std::size_t to) {
    const Apart these(apart);
    torch::manual_seed(4);
    MirroredStrategy strategy({.devices = test_devices(replicas), .deterministic = true});
    auto model = strategy.make([] { return std::make_shared<Net>(1500); });
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
    const auto path = [&](std::size_t step) { return folder / ("training" + std::to_string(step)); };
    if (from > 0) load(path(from), model, optimizer);
    expect_equal_copies(strategy, model, apart);
    for (std::size_t i = from; i < to; ++i) mirrored_step(strategy, model, optimizer, batches[i]);
    save(path(to), model, optimizer);
    expect_equal_copies(strategy, model, apart);
    return host_copies(model.parameters());
  };
  const auto expected = train(false, 0, 9);
  train(true, 0, 3);
  train(false, 3, 6);
  EXPECT_EQ(first_difference(train(true, 6, 9), expected), "");
}

class ChangesApart : public testing::Test {
 protected:
  ChangesApart() : these(true), strategy({.devices = test_devices(3)}), model(strategy.make<SmallNet>(600)) {
    set_log_severity(Severity::Silent);
  }
  at::Tensor weight_of(std::size_t k) {
    return strategy.run([&] { return model->first->weight.detach(); })[k];
  }
  void expect_everywhere(double value) {
    for (std::size_t k = 0; k < 3; ++k)
      EXPECT_TRUE(weight_of(k).eq(value).all().item<bool>()) << "replica " << k << " has not " << value;
  }

  Apart these;
  MirroredStrategy strategy;
  MirroredModule<SmallNet> model;
};

TEST_F(ChangesApart, ByLockstepReachAllCopies) {
  model.update([](SmallNet& net) { net.first->weight.fill_(2); });
  expect_everywhere(2);
  strategy.run([&] { model.update([](SmallNet& net) { net.first->weight.fill_(3); }); });
  expect_everywhere(3);
  model.apply([](torch::nn::Module& part) {
    const torch::NoGradGuard no_grad;
    if (auto* const linear = part.as<torch::nn::Linear>()) linear->weight.fill_(4);
  });
  expect_everywhere(4);
  EXPECT_THROW(model.update([](SmallNet& net) {
    net.first->weight.fill_(5);
    throw std::runtime_error("after a change");
  }),
               std::runtime_error);
  expect_everywhere(5);
}

TEST_F(ChangesApart, InPlaceReachAllCopies) {
  {
    const torch::NoGradGuard no_grad;
    model->first->weight.fill_(2);
  }
  expect_everywhere(2);
  strategy.run([&] {
    get_replica_context().merge_call([&](Strategy&) {
      const torch::NoGradGuard no_grad;
      model->first->weight.fill_(3);
    });
  });
  expect_everywhere(3);
}

TEST_F(ChangesApart, OfOneCopyAloneAreRefused) {
  auto kept = strategy.run([&] { return model->first->weight; });
  {
    const torch::NoGradGuard no_grad;
    kept[1].fill_(7);
  }
  try {
    weight_of(0);
    ADD_FAILURE() << "went unnoticed";
  } catch (const FailedPrecondition& e) {
    EXPECT_EQ(e.number(), errors::kWrongModule);
    EXPECT_NE(std::string(e.what()).find("only on replica 1"), std::string::npos) << e.what();
  }
  model.update([](SmallNet& net) { net.first->weight.fill_(2); });
  expect_everywhere(2);
}

TEST_F(ChangesApart, ThatNobodyCountsAreFoundByDigests) {
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  optimizer.set_digest({.every = 1});
  const auto step = [&] { strategy.run([&] { optimizer.minimize(model->forward(here(torch::ones({4, 9}))).sum()); }); };
  step();
  // For a parameter that the next step does not write: written ones become equal again.
  auto frozen = strategy.run([&] {
    model->first->weight.requires_grad_(false);
    return model->first->weight;
  });
  frozen[2].data().fill_(1);
  EXPECT_THROW((step(), optimizer.steps()), DataLoss);  // on a GPU at the next call
}

TEST_F(ChangesApart, AnotherTypeIsOnAllCopies) {
  model.to(at::kDouble);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
  strategy.run([&] { optimizer.minimize(model->forward(here(torch::ones({4, 9}, at::kDouble))).sum()); });
  expect_equal_copies(strategy, model);
}

TEST_F(ChangesApart, AModelMayBePartOfAnother) {
  std::size_t built = 0;
  auto twin = strategy.make([&] {
    auto net = std::make_shared<torch::nn::Module>("twin");
    net->register_module("part", model.replica(built++));
    return net;
  });
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
  strategy.run([&] { optimizer.minimize(model->forward(here(torch::ones({4, 9}))).sum()); });
  expect_equal_copies(strategy, model);
  expect_equal_copies(strategy, twin);
}

TEST(ModelsApart, AreNotMadeInInferenceMode) {
  const Apart these(true);
  MirroredStrategy strategy({.devices = test_devices(2)});
  const c10::InferenceMode mode;
  EXPECT_THROW(strategy.make<SmallNet>(), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
