#include "lockstep/nn/save/save.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/nn/save/optimizer_entries.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/named_tensors.h"
#include "tests/support/plain_loop.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/zoo.h"

// The contents of saved files, and that training continues from them as if uninterrupted.
namespace lockstep {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

// Every optimizer, from every number of replicas to every other.

struct Recipe {
  std::string name;
  /// Trains 3 steps on `before` replicas, saves, loads into `after` replicas and trains 3 more; and 6 in one go.
  std::function<void(int before, int after)> check;
};

template <class Opt, class Options>
Recipe recipe(std::string name, Options options) {
  return {std::move(name), [options](int before, int after) {
            const TemporaryFolder folder;
            const std::string path = folder / "run.safetensors";
            const ModuleOptions format{.channels_last = true};
            torch::manual_seed(3);
            MirroredStrategy whole(on_devices(before));
            auto uninterrupted = whole.make<Zoo>(format);
            auto of_it = whole.make_optimizer<Opt>(uninterrupted, options);
            train_steps(whole, uninterrupted, of_it, 0, 3);
            save(path, uninterrupted, of_it);
            train_steps(whole, uninterrupted, of_it, 3, 6);
            torch::manual_seed(4);  // different weights at first
            MirroredStrategy strategy(on_devices(after));
            auto model = strategy.make<Zoo>(format);
            auto optimizer = strategy.make_optimizer<Opt>(model, options);
            train_steps(strategy, model, optimizer, 0, 1);
            load(path, model, optimizer);
            EXPECT_EQ(optimizer.steps(), 3);
            train_steps(strategy, model, optimizer, 3, 6);
            expect_same(copies_of_all(model.named_parameters()), copies_of_all(uninterrupted.named_parameters()));
            EXPECT_EQ(combine(optimizer.digests()), combine(of_it.digests()));
            save(folder / "a", model, optimizer);
            save(folder / "b", uninterrupted, of_it);
            // Equal except for the seed.
            expect_same(load_tensors(folder / "a"), load_tensors(folder / "b"));
          }};
}

class EveryOptimizer : public testing::TestWithParam<Recipe> {};

TEST_P(EveryOptimizer, GoesOnWithTheSameBitsOnAnyNumberOfReplicas) {
  for (const auto& [before, after] : {std::pair(2, 2), std::pair(2, 3), std::pair(3, 1), std::pair(1, 4)}) {
    SCOPED_TRACE(str(before, " replicas, then ", after));
    GetParam().check(before, after);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryOptimizer,
    testing::Values(recipe<torch::optim::SGD>("Sgd", SGDOptions(0.01)),
                    recipe<torch::optim::SGD>("Momentum", SGDOptions(0.01).momentum(0.9).nesterov(true)),
                    recipe<torch::optim::Adam>("Adam", AdamOptions(0.01).amsgrad(true)),
                    recipe<torch::optim::AdamW>("AdamW", AdamWOptions(0.01)),
                    recipe<torch::optim::RMSprop>("RMSprop", RMSpropOptions(0.01).momentum(0.5).centered(true)),
                    recipe<torch::optim::Adagrad>("Adagrad", AdagradOptions(0.01))),
    [](const auto& its) { return its.param.name; });

TEST(SaveAndLoad, ARealTrainingGoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  torch::manual_seed(3);
  std::vector<Batch> batches;
  for (int i = 0; i < 6; ++i) batches.push_back(random_batch(24));
  const auto run = [&](bool interrupted) {
    torch::manual_seed(5);
    auto strategy = std::make_unique<MirroredStrategy>(on_devices(2));
    auto model = strategy->make<SmallNet>();
    auto optimizer = strategy->make_optimizer<torch::optim::Adam>(
        model, {{{"first."}, AdamOptions(0.1)}, {{""}, AdamOptions(0.01)}});
    for (int i = 0; i < 3; ++i) mirrored_step(*strategy, model, optimizer, batches[i]);
    const std::string path = folder / (interrupted ? "interrupted" : "whole");
    save(path, model, optimizer);
    if (interrupted) load(path, model, optimizer);
    for (int i = 3; i < 6; ++i) mirrored_step(*strategy, model, optimizer, batches[i]);
    return copies_of_all(model.named_parameters());
  };
  expect_same(run(true), run(false));
  EXPECT_EQ(file_content(folder / "interrupted"), file_content(folder / "whole")) << "equal trainings, equal files";
}

// The contents of a file.

TEST(SavedFile, HasWeightsBuffersAndStateByName) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  MirroredStrategy strategy({.devices = test_devices(2), .seed = 77});
  auto model = strategy.make<Zoo>({.channels_last = true});
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  train_steps(strategy, model, optimizer, 0, 2);
  strategy.run([&] { model->mean.fill_(my_id() == 0 ? 1.0 : 4.0); });
  save(path, model, optimizer);
  const Tensors tensors = load_tensors(path);
  std::string names;
  for (const auto& [name, value] : tensors) names += name + " ";
  EXPECT_EQ(names,
            "count empty flags frozen image large mean number "
            "optimizer/image/exp_avg optimizer/image/exp_avg_sq optimizer/image/step "
            "optimizer/large/exp_avg optimizer/large/exp_avg_sq optimizer/large/step "
            "optimizer/number/exp_avg optimizer/number/exp_avg_sq optimizer/number/step spread turned unused ");
  EXPECT_TRUE(same_bits(tensors.at("image"), model->image)) << "row by row, whatever the layout in memory";
  EXPECT_TRUE(same_bits(tensors.at("mean"), torch::full({2}, 2.5)));
  EXPECT_TRUE(same_bits(tensors.at("turned"), model->turned));
  EXPECT_EQ(tensors.at("optimizer/large/step").item<int>(), 2);
  auto metadata = load_metadata(path);
  EXPECT_EQ(metadata.extract("lockstep.crc32c").mapped().size(), 9 * (tensors.size() + 1) - 1);
  EXPECT_EQ(metadata.extract("lockstep.version").empty(), false);
  EXPECT_EQ(metadata, (std::map<std::string, std::string>{{"format", "pt"},
                                                          {"lockstep.format", "1"},
                                                          {"lockstep.optimizer", "torch::optim::Adam"},
                                                          {"lockstep.seed", "77"},
                                                          {"lockstep.steps", "2"}}));
  save(folder / "model", model);
  EXPECT_FALSE(load_metadata(folder / "model").contains("lockstep.steps"));
  EXPECT_EQ(load_tensors(folder / "model").size(), 11u);
}

TEST(SavedFile, HoldsAnyTensorsUnderAnyNames) {
  const TemporaryFolder folder;
  const std::string path = folder / "any";
  const Tensors tensors{{"double", torch::arange(3, at::kDouble)},
                        {"float of a slice", torch::arange(12, at::kFloat).reshape({3, 4}).slice(1, 1, 3)},
                        {"half", torch::ones({2}, at::kHalf)},
                        {"bfloat16", torch::ones({2}, at::kBFloat16)},
                        {"long", torch::tensor(std::int64_t{-5})},
                        {"int", torch::arange(3, at::kInt)},
                        {"short", torch::arange(3, at::kShort)},
                        {"char", torch::arange(3, at::kChar)},
                        {"byte", torch::arange(3, at::kByte)},
                        {"bool", torch::tensor({true, false})},
                        {"float8", torch::ones({2}).to(at::kFloat8_e4m3fn)},
                        {"other float8", torch::ones({2}).to(at::kFloat8_e5m2)},
                        {"unsigned", torch::ones({2}, at::kInt).to(at::kUInt16)},
                        {"expanded", torch::ones({1}).expand({3})},
                        {"empty", torch::zeros({2, 0})},
                        {"needs gradients", torch::ones({2}).requires_grad_()},
                        {"", torch::ones({1})},
                        {"gr\xc3\xb6\xc3\x9f"
                         "e\n",
                         torch::ones({1})}};
  save(path, tensors);
  expect_same(load_tensors(path), tensors);
  const std::string first = file_content(path);
  save(path, tensors);
  EXPECT_EQ(file_content(path), first);
  const Tensors python = load_tensors(LOCKSTEP_TEST_DATA_DIR "/safetensors/python.safetensors");
  EXPECT_TRUE(same_bits(python.at("weight"), torch::arange(6, at::kFloat).reshape({2, 3})));
  EXPECT_TRUE(same_bits(python.at("brain"), torch::tensor({1.0, -3.0}).to(at::kBFloat16)));
  EXPECT_EQ(python.at("count").dim(), 0);
}

TEST(SavedFile, HoldsWhateverNamesTensors) {
  const TemporaryFolder folder;
  const std::string path = folder / "any";
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<SmallNet>();
  save(path, model.named_parameters());
  expect_same(load_tensors(path), copies_of_all(model.named_parameters()));
  const at::Tensor one = torch::ones({2});
  save(path, std::unordered_map<std::string, at::Tensor>{{"a", one}, {"b", one * 2}});
  expect_same(load_tensors(path), Tensors{{"a", one}, {"b", one * 2}});
  save(path, {{"c", one}});
  expect_same(load_tensors(path), Tensors{{"c", one}});
}

TEST(SavedFile, SparseStateKeepsItsRows) {
  const TemporaryFolder folder;
  const std::string path = folder / "sparse";
  const auto build = [](Strategy& strategy) {
    return strategy.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 3).sparse(true)); });
  };
  const auto step = [](Strategy& strategy, auto& model, auto& optimizer, std::int64_t row) {
    strategy.run([&] {
      const at::Tensor rows = here(torch::tensor({row, row + 1 + my_id()}));
      optimizer.minimize(model->forward(rows).square().sum() * (my_id() == 0 ? 1.0 : 0.0));
    });
  };
  MirroredStrategy two(on_devices(2)), three(on_devices(3));
  auto model = build(two);
  auto optimizer = two.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1).momentum(0.9));
  step(two, model, optimizer, 4);
  step(two, model, optimizer, 7);
  save(path, model, optimizer);
  const Tensors tensors = load_tensors(path);
  EXPECT_TRUE(tensors.contains("optimizer/weight/momentum_buffer.indices"));
  EXPECT_LT(tensors.at("optimizer/weight/momentum_buffer.values").size(0), 50);
  auto other = build(three);
  auto its = three.make_optimizer<torch::optim::SGD>(other, SGDOptions(0.1).momentum(0.9));
  load(path, other, its);
  step(two, model, optimizer, 4);
  step(three, other, its, 4);
  EXPECT_TRUE(same_bits(other->weight, model->weight));
  // Parts that do not belong together.
  for (const char* part : {"indices", "values", "shape"}) {
    Tensors cut = tensors;
    cut.erase(str("optimizer/weight/momentum_buffer.", part));
    expect_error(
        [&] {
          detail::optimizer_state_of({cut.lower_bound("optimizer/"), cut.lower_bound("optimizer0")});
        },
        Code::DataLoss, errors::kSafetensors, {"momentum_buffer", part});
  }
  Tensors wrong{tensors.lower_bound("optimizer/"), tensors.lower_bound("optimizer0")};
  wrong["optimizer/weight/momentum_buffer.indices"] = wrong["optimizer/weight/momentum_buffer.indices"] + 100;
  expect_error([&] { detail::optimizer_state_of(wrong); }, Code::DataLoss, errors::kSafetensors, {"do not fit"});
}

}  // namespace
}  // namespace lockstep
