#include "lockstep/nn/save/save.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/named_tensors.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/zoo.h"

// The effects of loading, and what it leaves unchanged.
namespace lockstep {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

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
  train_steps(strategy, model, optimizer, 0, 1);
  save(folder / "run", model, optimizer);
  {
    const c10::InferenceMode inference;
    load(folder / "run", model, optimizer);
    optimizer.load_state(optimizer.state());
  }
  train_steps(strategy, model, optimizer, 1, 2);
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
  expect_error([&] { load(path, model); }, Code::InvalidArgument, errors::kSavedState, {"'large' and 'tied'"});
  EXPECT_EQ(model->large.min().item<float>(), 8);
}

TEST(Load, TellsAllThatDoesNotFitAndChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  train_steps(strategy, model, optimizer, 0, 2);
  save(path, model, optimizer);
  Tensors tensors = load_tensors(path);
  tensors.erase("mean");
  tensors.erase("large");
  tensors["extra"] = torch::ones({1});
  tensors["image"] = torch::ones({4, 3});
  tensors["number"] = tensors["number"].to(at::kDouble);
  save(path, tensors);
  train_steps(strategy, model, optimizer, 2, 3);
  const Tensors before = copies_of_all(model.named_parameters());
  expect_error([&] { load(path, model); }, Code::InvalidArgument, errors::kSavedState,
               {"2 missing, 1 unexpected, 2 of another shape or type", "large or tied", "mean", "extra",
                "image (F32 [4, 3] in the file, F32 [4, 3, 2, 2] in the model)", "number (F64 []", "strict = false"});
  expect_same(copies_of_all(model.named_parameters()), before);
  expect_error([&] { load(path, model, optimizer); }, Code::InvalidArgument, errors::kSavedState,
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
  train_steps(strategy, model, adam, 0, 2);
  save(path, model, adam);
  const auto refuses = [&](auto optimizer, const std::vector<std::string>& says, LoadOptions options = {}) {
    train_steps(strategy, model, optimizer, 0, 1);
    const Tensors before = copies_of_all(model.named_parameters());
    const auto digests = combine(optimizer.digests());
    const SeenError seen = error_of([&] { load(path, model, optimizer, options); });
    for (const std::string& part : says) EXPECT_TRUE(contains(seen.text, part)) << part << '\n' << seen.text;
    EXPECT_NE(seen.parts.help, "");
    EXPECT_EQ(seen.number, errors::kSavedState);
    expect_same(copies_of_all(model.named_parameters()), before);
    EXPECT_EQ(combine(optimizer.digests()), digests);
  };
  using torch::optim::AdamW;
  using torch::optim::SGD;
  refuses(strategy.make_optimizer<SGD>(model, SGDOptions(0.1)),
          {"the optimizer (torch::optim::Adam in the file, torch::optim::SGD in the program)",
           "load only the weights, ls::load(path, model)"});
  refuses(strategy.make_optimizer<SGD>(model, SGDOptions(0.1).momentum(0.9)),
          {"knows no 'exp_avg'", path, "load only the weights, ls::load(path, model)"}, {.strict = false});
  refuses(strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01).amsgrad(true)),
          {"max_exp_avg_sq", "load of"});
  const std::vector<ParameterGroup<AdamOptions>> some{{{"large", "number"}, AdamOptions(0.01)}};
  refuses(strategy.make_optimizer<torch::optim::Adam>(model, some),
          {"unexpected: optimizer/image/exp_avg, optimizer/image/exp_avg_sq, optimizer/image/step"});
  LoggedLines lines;
  auto adamw = strategy.make_optimizer<AdamW>(model, AdamWOptions(0.01));
  load(path, model, adamw, {.strict = false});
  EXPECT_EQ(lines.count("continues with the state of a different class: the optimizer (torch::optim::Adam in the file, "
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
  train_steps(strategy, model, of_some, 0, 2);
  save(path, model, of_some);
  load(path, model, of_some);
  auto of_all = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  train_steps(strategy, model, of_all, 0, 1);
  const Tensors before = copies_of_all(model.named_parameters());
  expect_error([&] { load(path, model, of_all); }, Code::InvalidArgument, errors::kSavedState,
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
  train_steps(strategy, small, of_small, 0, 3);
  save(path, small, of_small);
  auto model = strategy.make<Zoo>(20);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  train_steps(strategy, model, optimizer, 0, 1);
  const OptimizerState before = optimizer.state();
  const LogSilence silence;
  load(path, model, optimizer, {.strict = false});
  const OptimizerState after = optimizer.state();
  EXPECT_TRUE(same_bits(after.at("large").at("exp_avg"), before.at("large").at("exp_avg")));
  EXPECT_TRUE(same_bits(after.at("image").at("exp_avg"), of_small.state().at("image").at("exp_avg")));
  EXPECT_EQ(after.at("number").at("step").item<int>(), 3);
  train_steps(strategy, model, optimizer, 3, 4);
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
  train_steps(strategy, model, optimizer, 0, 2);
  save(path, model, optimizer);
  const std::string good = file_content(path);
  TearingSgd::tears = true;
  EXPECT_ANY_THROW(train_steps(strategy, model, optimizer, 2, 3));
  TearingSgd::tears = false;
  expect_error([&] { save(path, model, optimizer); }, Code::FailedPrecondition, errors::kTornWeights, {"torn"});
  expect_error([&] { load(path, model, optimizer); }, Code::FailedPrecondition, errors::kTornWeights,
               {"new optimizer"});
  EXPECT_EQ(file_content(path), good);
  auto fresh = strategy.make_optimizer<TearingSgd>(model, SGDOptions(0.01).momentum(0.9));
  load(path, model, fresh);
  EXPECT_EQ(fresh.steps(), 2);
  train_steps(strategy, model, fresh, 2, 3);
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
  expect_error([&] { load(path, model); }, Code::InvalidArgument, errors::kSavedState, {"'spread'", "share memory"});
  EXPECT_NE(model->frozen[0].item<float>(), 1);
}

}  // namespace
}  // namespace lockstep
