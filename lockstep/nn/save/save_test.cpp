#include "lockstep/nn/save/save.h"

#include <ATen/ops/embedding.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/nn/save/optimizer_entries.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/named_tensors.h"
#include "tests/support/plain_loop.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

/// All kinds of parameters and buffers. Works element by element, so that its bits do not depend on who computes.
struct Zoo : torch::nn::Module {
  explicit Zoo(std::int64_t size = 3000) {
    large = register_parameter("large", torch::randn({size}));
    image = register_parameter("image", torch::randn({4, 3, 2, 2}));
    number = register_parameter("number", torch::tensor(0.5));
    empty = register_parameter("empty", torch::zeros({0, 3}));
    unused = register_parameter("unused", torch::ones({5}));
    frozen = register_parameter("frozen", torch::randn({2}), /*requires_grad=*/false);
    tied = register_parameter("tied", large);
    turned = register_buffer("turned", torch::arange(6, at::kFloat).reshape({2, 3}).t());
    mean = register_buffer("mean", torch::zeros({2}));
    count = register_buffer("count", torch::tensor(std::int64_t{3}));
    flags = register_buffer("flags", torch::tensor({true, false}));
    spread = register_buffer("spread", torch::ones({1}).expand({4}));
  }
  /// The first replica has the whole loss: sums over replicas are the same for every number of them.
  at::Tensor loss(int step) const {
    const double share = my_id() == 0 ? 1.0 : 0.0;
    const double pull = 0.25 * step;
    return ((large - pull).square().sum() + (image * (step + 1)).square().sum() + (number - pull).square() +
            empty.sum()) *
           share;
  }
  at::Tensor large, image, number, empty, unused, frozen, tied, turned, mean, count, flags, spread;
};

template <class Model, class Optimizer>
void train(Strategy& strategy, Model& model, Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) strategy.run([&] { optimizer.minimize(model->loss(step)); });
}

// Every optimizer, from every number of replicas to every other.

struct Recipe {
  std::string name;
  /// Trains 3 steps on `before` replicas, saves, loads into `after` replicas and trains 3 more; and 6 at a stretch.
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
            train(whole, uninterrupted, of_it, 0, 3);
            save(path, uninterrupted, of_it);
            train(whole, uninterrupted, of_it, 3, 6);
            torch::manual_seed(4);  // other weights at first
            MirroredStrategy strategy(on_devices(after));
            auto model = strategy.make<Zoo>(format);
            auto optimizer = strategy.make_optimizer<Opt>(model, options);
            train(strategy, model, optimizer, 0, 1);
            load(path, model, optimizer);
            EXPECT_EQ(optimizer.steps(), 3);
            train(strategy, model, optimizer, 3, 6);
            expect_same(copies_of_all(model.named_parameters()), copies_of_all(uninterrupted.named_parameters()));
            EXPECT_EQ(combine(optimizer.digests()), combine(of_it.digests()));
            save(folder / "a", model, optimizer);
            save(folder / "b", uninterrupted, of_it);
            // Equal but for the seed.
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

// What a file holds.

TEST(SavedFile, HasWeightsBuffersAndStateByName) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  MirroredStrategy strategy({.devices = test_devices(2), .seed = 77});
  auto model = strategy.make<Zoo>({.channels_last = true});
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  train(strategy, model, optimizer, 0, 2);
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

// What loading does.

TEST(Load, ReachesAllReplicasAndIsNoticed) {
  const TemporaryFolder folder;
  const std::string path = folder / "model";
  torch::manual_seed(1);
  MirroredStrategy strategy(on_devices(3));
  auto source = strategy.make<Zoo>();
  strategy.run([&] {
    source->mean.fill_(my_id());
    source->count.fill_(8);
  });
  save(path, source);
  auto model = strategy.make<Zoo>();
  std::vector<std::int64_t> versions;
  for (std::size_t k = 0; k < 3; ++k) versions.push_back(model.replica(k)->large._version());
  const void* const memory = model->large.const_data_ptr();
  load(path, model);
  expect_same(copies_of_all(model.named_parameters()), copies_of_all(source.named_parameters()));
  EXPECT_EQ(model->large.const_data_ptr(), memory);
  for (std::size_t k = 0; k < 3; ++k) {
    EXPECT_GT(model.replica(k)->large._version(), versions[k]) << k;
    EXPECT_TRUE(same_bits(model.replica(k)->large, source->large)) << k;
    EXPECT_TRUE(same_bits(model.replica(k)->mean, torch::ones({2}))) << k;
    EXPECT_EQ(model.replica(k)->count.item<int>(), 8) << k;
  }
}

TEST(Load, InInferenceModeGivesStateThatCanBeTrainedOn) {
  const TemporaryFolder folder;
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, 0.1);
  train(strategy, model, optimizer, 0, 1);
  save(folder / "run", model, optimizer);
  {
    const c10::InferenceMode inference;
    load(folder / "run", model, optimizer);
    optimizer.load_state(optimizer.state());
  }
  train(strategy, model, optimizer, 1, 2);
  EXPECT_EQ(optimizer.steps(), 2);
}

TEST(Load, TakesFilesWhoseDataIsNotAligned) {
  const TemporaryFolder folder;
  std::string header = R"({"weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})";
  header.resize(69, ' ');
  const std::vector<float> values{3, 4};
  std::string file = std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header;
  file.append(reinterpret_cast<const char*>(values.data()), 8);
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make([] { return torch::nn::Linear(torch::nn::LinearOptions(2, 1).bias(false)); });
  load(folder.file("odd", file), model);
  EXPECT_TRUE(same_bits(model->weight, torch::tensor({{3.F, 4.F}})));
}

TEST(Load, AnyByteButZeroIsTrue) {
  const TemporaryFolder folder;
  const std::string header = R"({"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  const std::string file = std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header;
  const Tensors loaded = load_tensors(folder.file("odd", file + std::string("\2\0\xff", 3)));
  EXPECT_TRUE(same_bits(loaded.at("a"), torch::tensor({true, false, true})));
}

TEST(Load, TiedWeightsHaveEitherNameOrBoth) {
  const TemporaryFolder folder;
  const std::string path = folder / "model";
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  save(path, model);
  Tensors tensors = load_tensors(path);
  tensors["large"].fill_(7);
  tensors["tied"] = tensors["large"].clone();
  save(path, tensors);
  load(path, model);
  EXPECT_EQ(model->large.min().item<float>(), 7);
  tensors.erase("large");
  tensors["tied"].fill_(8);
  save(path, tensors);
  load(path, model);
  EXPECT_EQ(model->large.min().item<float>(), 8);
  EXPECT_TRUE(model->large.is_same(model->tied));
  tensors["large"] = tensors["tied"] + 1;
  save(path, tensors);
  expect_error([&] { load(path, model); }, Code::InvalidArgument, errors::kSavedModel, {"'large' and 'tied'"});
  EXPECT_EQ(model->large.min().item<float>(), 8);
}

TEST(Load, TellsAllThatDoesNotFitAndChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  train(strategy, model, optimizer, 0, 2);
  save(path, model, optimizer);
  Tensors tensors = load_tensors(path);
  tensors.erase("mean");
  tensors.erase("large");
  tensors["extra"] = torch::ones({1});
  tensors["image"] = torch::ones({4, 3});
  tensors["number"] = tensors["number"].to(at::kDouble);
  save(path, tensors);
  train(strategy, model, optimizer, 2, 3);
  const Tensors before = copies_of_all(model.named_parameters());
  expect_error([&] { load(path, model); }, Code::InvalidArgument, errors::kSavedModel,
               {"2 missing, 1 unexpected, 2 of another shape or type", "large or tied", "mean", "extra",
                "image (F32 [4, 3] in the file, F32 [4, 3, 2, 2] in the model)", "number (F64 []", "strict = false"});
  expect_same(copies_of_all(model.named_parameters()), before);
  expect_error([&] { load(path, model, optimizer); }, Code::InvalidArgument, errors::kSavedModel,
               {"has no state of an optimizer", "ls::load(path, model)"});
  LoggedLines lines;
  load(path, model, {.strict = false});
  EXPECT_EQ(lines.count("missing: large or tied, mean; unexpected: extra; of another"), 1);
  EXPECT_TRUE(same_bits(model->image, before.at("image")));
  EXPECT_TRUE(same_bits(model->unused, tensors.at("unused")));
}

TEST(Load, StateOfAnOptimizerThatDoesNotFitChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  auto adam = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  train(strategy, model, adam, 0, 2);
  save(path, model, adam);
  const auto refuses = [&](auto optimizer, const std::vector<std::string>& says, LoadOptions options = {}) {
    train(strategy, model, optimizer, 0, 1);
    const Tensors before = copies_of_all(model.named_parameters());
    const auto digests = combine(optimizer.digests());
    const SeenError seen = error_of([&] { load(path, model, optimizer, options); });
    for (const std::string& part : says) EXPECT_TRUE(contains(seen.text, part)) << part << '\n' << seen.text;
    EXPECT_NE(seen.parts.help, "");
    EXPECT_EQ(seen.number, errors::kSavedModel);
    expect_same(copies_of_all(model.named_parameters()), before);
    EXPECT_EQ(combine(optimizer.digests()), digests);
  };
  using torch::optim::AdamW;
  using torch::optim::SGD;
  refuses(strategy.make_optimizer<SGD>(model, SGDOptions(0.1)),
          {"the optimizer (torch::optim::Adam in the file, torch::optim::SGD in the program)",
           "load the weights alone, ls::load(path, model)"});
  refuses(strategy.make_optimizer<SGD>(model, SGDOptions(0.1).momentum(0.9)),
          {"knows no 'exp_avg'", path, "load the weights alone, ls::load(path, model)"}, {.strict = false});
  refuses(strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01).amsgrad(true)),
          {"max_exp_avg_sq", "load of"});
  const std::vector<ParameterGroup<AdamOptions>> some{{{"large", "number"}, AdamOptions(0.01)}};
  refuses(strategy.make_optimizer<torch::optim::Adam>(model, some),
          {"unexpected: optimizer/image/exp_avg, optimizer/image/exp_avg_sq, optimizer/image/step"});
  LoggedLines lines;
  auto adamw = strategy.make_optimizer<AdamW>(model, AdamWOptions(0.01));
  load(path, model, adamw, {.strict = false});
  EXPECT_EQ(lines.count("goes on with the state of another class: the optimizer (torch::optim::Adam in the file, "
                        "torch::optim::AdamW in the program)"),
            1);
  EXPECT_EQ(adamw.steps(), 2);
  auto of_some = strategy.make_optimizer<torch::optim::Adam>(model, some);
  load(path, model, of_some, {.strict = false});
  EXPECT_EQ(of_some.state().at("large").at("step").item<int>(), 2);
}

TEST(Load, StateOfSomeParametersIsNotTakenForThatOfAll) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  const std::vector<ParameterGroup<AdamOptions>> some{{{"large", "number"}, AdamOptions(0.01)}};
  auto of_some = strategy.make_optimizer<torch::optim::Adam>(model, some);
  train(strategy, model, of_some, 0, 2);
  save(path, model, of_some);
  load(path, model, of_some);
  auto of_all = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  train(strategy, model, of_all, 0, 1);
  const Tensors before = copies_of_all(model.named_parameters());
  expect_error([&] { load(path, model, of_all); }, Code::InvalidArgument, errors::kSavedModel,
               {"3 missing", "missing: optimizer/frozen, optimizer/image, optimizer/unused"});
  expect_same(copies_of_all(model.named_parameters()), before);
  EXPECT_EQ(of_all.steps(), 1);
  LoggedLines lines;
  load(path, model, of_all, {.strict = false});
  EXPECT_EQ(lines.count("missing: optimizer/frozen"), 1);
  EXPECT_EQ(of_all.steps(), 2);
  EXPECT_TRUE(of_all.state().at("image").empty());
  EXPECT_EQ(of_all.state().at("large").at("step").item<int>(), 2);
}

TEST(Load, NotStrictStateFollowsItsWeight) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  MirroredStrategy strategy(on_devices(2));
  auto small = strategy.make<Zoo>(10);
  auto of_small = strategy.make_optimizer<torch::optim::Adam>(small, AdamOptions(0.01));
  train(strategy, small, of_small, 0, 3);
  save(path, small, of_small);
  auto model = strategy.make<Zoo>(20);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  train(strategy, model, optimizer, 0, 1);
  const OptimizerState before = optimizer.state();
  const LogSilence silence;
  load(path, model, optimizer, {.strict = false});
  const OptimizerState after = optimizer.state();
  EXPECT_TRUE(same_bits(after.at("large").at("exp_avg"), before.at("large").at("exp_avg")));
  EXPECT_TRUE(same_bits(after.at("image").at("exp_avg"), of_small.state().at("image").at("exp_avg")));
  EXPECT_EQ(after.at("number").at("step").item<int>(), 3);
  train(strategy, model, optimizer, 3, 4);
}

/// Fails half-way on one replica.
struct TearingSgd : torch::optim::SGD {
  using SGD::SGD;
  static inline bool tears = false;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (tears && my_id() == 0) throw std::runtime_error("out of luck");
    return SGD::step(std::move(closure));
  }
};

}  // namespace

template <>
struct OptimizerStateTraits<TearingSgd> : OptimizerStateTraits<torch::optim::SGD> {};

namespace {

TEST(Load, TornWeightsAreLoadedWithANewOptimizer) {
  const LogSilence silence;
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  auto optimizer = strategy.make_optimizer<TearingSgd>(model, SGDOptions(0.01).momentum(0.9));
  train(strategy, model, optimizer, 0, 2);
  save(path, model, optimizer);
  const std::string good = file_content(path);
  TearingSgd::tears = true;
  EXPECT_ANY_THROW(train(strategy, model, optimizer, 2, 3));
  TearingSgd::tears = false;
  expect_error([&] { save(path, model, optimizer); }, Code::FailedPrecondition, errors::kTornWeights, {"torn"});
  expect_error([&] { load(path, model, optimizer); }, Code::FailedPrecondition, errors::kTornWeights,
               {"new optimizer"});
  EXPECT_EQ(file_content(path), good);
  auto fresh = strategy.make_optimizer<TearingSgd>(model, SGDOptions(0.01).momentum(0.9));
  load(path, model, fresh);
  EXPECT_EQ(fresh.steps(), 2);
  train(strategy, model, fresh, 2, 3);
}

// Sparse buffers are constants of the module.

struct Graph : torch::nn::Module {
  Graph(bool is_compressed, const at::Tensor& dense) {
    edges = register_buffer("edges", is_compressed ? dense.to_sparse_csr() : dense.to_sparse());
    scale = register_parameter("scale", torch::ones({3, 1}));
  }
  at::Tensor loss(const at::Tensor& x) { return edges.matmul(x * scale).sum(); }
  at::Tensor edges, scale;
};

TEST(SparseBuffer, IsComparedAndCopiedButNeverAveraged) {
  for (const bool is_compressed : {false, true}) {
    SCOPED_TRACE(is_compressed ? "CSR" : "COO");
    const TemporaryFolder folder;
    MirroredStrategy strategy(on_devices(2));
    int calls = 0;
    auto model = strategy.make([&] { return std::make_shared<Graph>(is_compressed, torch::eye(3) * ++calls); });
    const auto expect_diagonal = [&](float value) {
      for (std::size_t k = 0; k < 2; ++k)
        EXPECT_TRUE(model.replica(k)->edges.to_dense().equal(torch::eye(3) * value)) << "replica " << k;
      EXPECT_TRUE(model.named_buffers()["edges"].to_dense().equal(torch::eye(3) * value));
    };
    expect_diagonal(1);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
    strategy.run([&] { optimizer.minimize(model->loss(torch::ones({3, 2}))); });
    model.update([](Graph& graph) { graph.scale.zero_(); });
    expect_diagonal(1);
    model.update([](Graph& graph) { graph.edges.mul_(5); });
    expect_diagonal(5);
    model.replica(1)->edges.mul_(2);
    model.synchronize_buffers();
    expect_diagonal(5);
    expect_error([&] { save(folder / "x", model); }, Code::Unimplemented, errors::kSafetensors,
                 {"'edges'", "layout is Sparse", "plain member", "register_buffer(name, tensor.to_dense())"});
    save(folder / "x", Tensors{{"scale", torch::full({3, 1}, 7.0)}});
    load(folder / "x", model);
    EXPECT_EQ(model->scale[0].item<float>(), 7);
    expect_diagonal(5);
  }
}

TEST(SparseBuffer, OfAnotherNumberOfElementsIsCopiedToo) {
  for (const bool is_compressed : {false, true}) {
    SCOPED_TRACE(is_compressed ? "CSR" : "COO");
    MirroredStrategy strategy(on_devices(2));
    int calls = 0;
    auto model = strategy.make([&] {
      return std::make_shared<Graph>(is_compressed, ++calls == 1 ? torch::eye(3) : torch::ones({3, 3}));
    });
    EXPECT_TRUE(model.replica(1)->edges.to_dense().equal(torch::eye(3)));
  }
}

TEST(ABufferWithoutMemoryOfItsOwn, CanBeSynchronizedWhereItIsAConstant) {
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  strategy.run([&] { model->mean.fill_(my_id()); });
  model.synchronize_buffers();
  EXPECT_EQ(model.replica(1)->mean[0].item<float>(), 0.5);
}

struct WithFloat8 : torch::nn::Module {
  WithFloat8() { register_buffer("scale", torch::full({2}, 0.5).to(at::kFloat8_e4m3fn)); }
};

TEST(SaveAndLoad, BuffersOfEightBitsAreSavedToo) {
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<WithFloat8>();
  const TemporaryFolder folder;
  save(folder / "model", model);
  auto other = strategy.make<WithFloat8>();
  other.update([](WithFloat8& net) { net.named_buffers()["scale"].copy_(torch::ones({2})); });
  load(folder / "model", other);
  EXPECT_TRUE(other.named_buffers()["scale"].to(at::kFloat).equal(torch::full({2}, 0.5)));
}

// What is refused.

struct OddNames : torch::nn::Module {
  explicit OddNames(const std::string& name, at::ScalarType dtype = at::kFloat) {
    register_buffer(name, torch::ones({2}, dtype));
  }
};

TEST(SaveAndLoad, MistakesAreNamed) {
  const TemporaryFolder folder;
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  auto other = strategy.make<Zoo>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.01));
  save(folder / "good", model, optimizer);
  const std::string content = file_content(folder / "good");
  std::string flipped = content;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  const auto complex = torch::ones({1}, at::kComplexFloat);
  struct Row {
    const char* name;
    std::function<void()> call;
    Code code;
    int number;
    std::vector<std::string> says;
  };
  const std::vector<Row> rows{
      {"SaveInsideRun",
       [&] { strategy.run([&] { save(folder / "x", model); }); },
       Code::FailedPrecondition,
       errors::kWrongContext,
       {"save", "outside"}},
      {"LoadInsideRun",
       [&] { strategy.run([&] { load(folder / "good", model); }); },
       Code::FailedPrecondition,
       errors::kWrongContext,
       {"load", "outside"}},
      {"SaveTensorsInsideRun",
       [&] { strategy.run([&] { save(folder / "x", Tensors{}); }); },
       Code::FailedPrecondition,
       errors::kWrongContext,
       {"save", "outside"}},
      {"SaveWithAnothersOptimizer",
       [&] { save(folder / "x", other, optimizer); },
       Code::InvalidArgument,
       errors::kSavedModel,
       {"another model"}},
      {"LoadWithAnothersOptimizer",
       [&] { load(folder / "good", other, optimizer); },
       Code::InvalidArgument,
       errors::kSavedModel,
       {"another model"}},
      {"NoFile", [&] { load(folder / "none", model); }, Code::NotFound, errors::kFile, {"none"}},
      {"NoFolder", [&] { save(folder / "none/file", model); }, Code::NotFound, errors::kFile, {"no folder"}},
      {"AFolder", [&] { save(folder.path().string(), model); }, Code::FailedPrecondition, errors::kFile, {"a folder"}},
      {"CutOff",
       [&] { load(folder.file("cut", content.substr(0, content.size() - 1)), model); },
       Code::DataLoss,
       errors::kSafetensors,
       {"cut off"}},
      {"OneBitFlipped",
       [&] { load(folder.file("flipped", flipped), model); },
       Code::DataLoss,
       errors::kSafetensors,
       {"'flags'", "CRC32C"}},
      {"NotAFileOfTensors",
       [&] { load_tensors(folder.file("text", "hello, world")); },
       Code::DataLoss,
       errors::kSafetensors,
       {"longer than it can be"}},
      {"NewerFormat",
       [&] {
         std::string newer = content;
         newer[newer.find(R"("lockstep.format":"1")") + 19] = '2';
         newer.replace(newer.find("lockstep.crc32c"), 8, "somebody");
         load(folder.file("newer", newer), model);
       },
       Code::Unimplemented,
       errors::kSafetensors,
       {"format 2", "newer"}},
      {"Complex",
       [&] {
         save(folder / "x", Tensors{{"c", complex}});
       },
       Code::Unimplemented,
       errors::kSafetensors,
       {"'c'", "view_as_real"}},
      {"ComplexBuffer",
       [&] { save(folder / "x", strategy.make<OddNames>("c", at::kComplexFloat)); },
       Code::Unimplemented,
       errors::kSafetensors,
       {"'c'", "register torch::view_as_real(tensor)", "view_as_complex of it in forward"}},
      {"Undefined",
       [&] {
         save(folder / "x", Tensors{{"u", at::Tensor()}});
       },
       Code::Unimplemented,
       errors::kSafetensors,
       {"'u'", "undefined"}},
      {"Sparse",
       [&] {
         save(folder / "x", Tensors{{"s", torch::ones({2, 2}).to_sparse()}});
       },
       Code::Unimplemented,
       errors::kSafetensors,
       {"'s'", "to_dense"}},
      {"Meta",
       [&] {
         save(folder / "x", Tensors{{"m", torch::ones({2}, at::Device(at::kMeta))}});
       },
       Code::Unimplemented,
       errors::kSafetensors,
       {"'m'", "meta"}},
      {"ReservedName",
       [&] { save(folder / "x", strategy.make<OddNames>("optimizer/a")); },
       Code::InvalidArgument,
       errors::kWrongModule,
       {"'optimizer/a'"}},
      {"MetadataName",
       [&] { save(folder / "x", strategy.make<OddNames>("__metadata__")); },
       Code::InvalidArgument,
       errors::kSafetensors,
       {"__metadata__"}},
      {"OpenWindow",
       [&] {
         optimizer.set_accumulate(2);
         train(strategy, model, optimizer, 0, 1);
         save(folder / "x", model, optimizer);
       },
       Code::FailedPrecondition,
       errors::kOptimizer,
       {"window"}},
  };
  const LogSilence silence;
  for (const Row& row : rows) expect_error(row.call, row.code, row.number, row.says, row.name);
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
  EXPECT_EQ(file_content(folder / "good"), content);
  load(folder / "good", model, optimizer);  // also out of an open window
  EXPECT_EQ(optimizer.steps(), 0);
}

TEST(SaveAndLoad, AreRefusedWhileAnotherThreadTrains) {
  const TemporaryFolder folder;
  const std::string path = folder / "model";
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.01));
  save(path, model, optimizer);
  const std::string good = file_content(path);
  std::promise<void> started, finished;
  const auto until = finished.get_future().share();
  std::thread training([&] {
    strategy.run([&] {
      if (my_id() != 0) return;
      started.set_value();
      until.wait_for(std::chrono::seconds(60));
    });
  });
  ASSERT_EQ(started.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"save", [&] { save(path, model); }},
      {"save with an optimizer", [&] { save(path, model, optimizer); }},
      {"load", [&] { load(path, model, optimizer); }},
      {"state", [&] { optimizer.state(); }},
      {"load_state", [&] { optimizer.load_state({}); }},
      {"named_buffers", [&] { model.named_buffers(); }},
      {"update", [&] { model.update([](Zoo&) {}); }}};
  for (const auto& [name, call] : calls)
    expect_error(call, Code::FailedPrecondition, errors::kWrongContext, {"another thread", "between two runs"}, name);
  finished.set_value();
  training.join();
  EXPECT_EQ(file_content(path), good);
  load(path, model, optimizer);
  EXPECT_ANY_THROW(strategy.run([] { throw std::runtime_error("a run that fails ends too"); }));
  std::thread([&] { save(path, model, optimizer); }).join();
  strategy.run([&] { get_replica_context().merge_call([&](Strategy&) { save(path, model); }); });
}

TEST(Load, ABufferWithoutMemoryOfItsOwnIsLeftAloneOrNamed) {
  const TemporaryFolder folder;
  const std::string path = folder / "model";
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  save(path, model);
  load(path, model);
  Tensors tensors = load_tensors(path);
  tensors["spread"][1] = 5;
  tensors["frozen"].fill_(1);
  save(path, tensors);
  expect_error([&] { load(path, model); }, Code::InvalidArgument, errors::kSavedModel, {"'spread'", "share memory"});
  EXPECT_NE(model->frozen[0].item<float>(), 1);
}

}  // namespace
}  // namespace lockstep
