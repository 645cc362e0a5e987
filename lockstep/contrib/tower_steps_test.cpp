// Distributed datasets of towers, and loops of several steps over them.

#include <gtest/gtest.h>

#include <any>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/contrib.h"
#include "lockstep/lockstep.h"
#include "tests/support/expect_error.h"
#include "tests/support/towers.h"

namespace lockstep::contrib {
namespace {

std::vector<Doubles> all_steps(MirroredStrategy& strategy, TowerIterator<at::Tensor>& iterator) {
  std::vector<Doubles> steps;
  try {
    while (true) steps.push_back(values_of(strategy.unwrap(iterator.get_next())));
  } catch (const OutOfRange&) {
    return steps;
  }
}

// names: distribute_dataset, prefetch_on_device, make_one_shot_iterator, make_initializable_iterator
TEST(ContribDatasets, GiveEachTowerAWholeElement) {
  for (const bool prefetch : {true, false}) {
    MirroredStrategy strategy({.devices = cpus(2), .prefetch_on_device = prefetch});
    const auto dataset = strategy.distribute_dataset([] { return data::range(11); });
    auto once = dataset.make_one_shot_iterator();
    const std::vector<Doubles> expected{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}};
    EXPECT_EQ(all_steps(strategy, once), expected);
    auto again = dataset.make_initializable_iterator();
    expect_error([&] { again.get_next(); }, Code::FailedPrecondition, errors::kNoMoreData, {"initialized"});
    again.initializer();
    EXPECT_EQ(all_steps(strategy, again), expected);
    again.initialize();
    EXPECT_EQ(all_steps(strategy, again), expected);
  }
}

// names: run_steps_on_dataset, MultiStepContext, set_last_step_output, set_non_tensor_output, last_step_outputs,
// names: non_tensor_outputs, run_op
TEST(ContribSteps, HandOutTheLastStep) {
  auto& strategy = towers(2);
  auto iterator = strategy.distribute_dataset([] { return data::range(12); }).make_one_shot_iterator();
  const auto step = [&](MultiStepContext& ctx, const PerDevice<at::Tensor>& x) {
    EXPECT_TRUE(in_cross_tower_context());
    ctx.set_last_step_output("each", x);
    ctx.set_last_step_output("sum", x, Agg::SUM);
    ctx.set_last_step_output("plain", 3.0, Agg::MEAN);
    ctx.set_non_tensor_output("text", "out");
    strategy.call_for_each_tower(
        [&](const at::Tensor& mine) {
          ctx.set_last_step_output("mean", mine.to(at::kFloat), Agg::MEAN);
          ctx.set_last_step_output("first", mine, Agg::ONLY_FIRST_TOWER);
          ctx.set_non_tensor_output("foo", "bar");
          ctx.set_non_tensor_output("ids", get_tower_context().tower_id());
        },
        x);
  };
  auto ctx = strategy.run_steps_on_dataset(step, iterator, 3);
  const auto output = [&](const char* name) { return values_of(ctx.last_step_outputs().at(name).values()); };
  EXPECT_EQ(output("each"), (Doubles{4, 5}));
  EXPECT_EQ(output("sum"), (Doubles{9}));
  EXPECT_EQ(output("mean"), (Doubles{4.5}));
  EXPECT_EQ(output("first"), (Doubles{4}));
  EXPECT_EQ(output("plain"), (Doubles{3}));
  EXPECT_EQ(std::any_cast<std::string>(ctx.non_tensor_outputs().at("text")), "out");
  EXPECT_EQ(std::any_cast<std::vector<std::string>>(ctx.non_tensor_outputs().at("foo")),
            std::vector<std::string>{"bar"});
  EXPECT_EQ(std::any_cast<std::vector<int>>(ctx.non_tensor_outputs().at("ids")), (std::vector<int>{0, 1}));
  ctx.run_op();
  EXPECT_EQ(output("each"), (Doubles{10, 11}));
  EXPECT_THROW(ctx.run_op(), OutOfRange);
  EXPECT_EQ(output("sum"), (Doubles{21}));
}

TEST(ContribSteps, RunAgainWhateverHasBecomeOfTheIterator) {
  auto strategy = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = cpus(2), .seed = 1});
  std::optional<MultiStepContext> ctx;
  {
    auto iterator = strategy->distribute_dataset([] { return data::range(12); }).make_one_shot_iterator();
    auto moved = std::move(iterator);
    ctx = strategy->run_steps_on_dataset(
        [](MultiStepContext& its, const PerDevice<at::Tensor>& x) { its.set_last_step_output("x", x); }, moved);
    EXPECT_EQ(value_of(iterator.get_next()[0]), 2);  // copies refer to one pass
  }
  ctx->run_op();
  EXPECT_EQ(values_of(ctx->last_step_outputs().at("x").values()), (Doubles{4, 5}));
  strategy.reset();
  expect_error([&] { ctx->run_op(); }, Code::FailedPrecondition, errors::kMixedStrategies, {"outlived its strategy"});
  EXPECT_EQ(values_of(ctx->last_step_outputs().at("x").values()), (Doubles{4, 5}));
}

TEST(ContribSteps, TakeTheSameOutputsFromAllTowers) {
  auto& strategy = towers(2);
  auto iterator = strategy.distribute_dataset([] { return data::range(8); }).make_one_shot_iterator();
  const auto run = [&](const std::function<void(MultiStepContext&, bool)>& in_tower) {
    strategy.run_steps_on_dataset(
        [&](MultiStepContext& ctx, const PerDevice<at::Tensor>&) {
          strategy.call_for_each_tower([&] { in_tower(ctx, get_tower_context().tower_id() == 0); });
        },
        iterator);
  };
  const char* const kDifferent = "towers set different outputs of a step";
  expect_error([&] { run([](auto& ctx, bool first) { ctx.set_last_step_output(first ? "a" : "b", 1.0, Agg::SUM); }); },
               Code::FailedPrecondition, errors::kDifferentCollective, {kDifferent});
  expect_error(
      [&] { run([](auto& ctx, bool first) { ctx.set_last_step_output("a", 1.0, first ? Agg::SUM : Agg::MEAN); }); },
      Code::FailedPrecondition, errors::kDifferentCollective, {kDifferent});
  expect_error([&] { run([](auto& ctx, bool first) { ctx.set_non_tensor_output(first ? "a" : "b", 1); }); },
               Code::FailedPrecondition, errors::kDifferentCollective, {kDifferent});
}

TEST(ContribSteps, AreNotRunInsideOfSteps) {
  auto& strategy = towers(2);
  auto iterator = strategy.distribute_dataset([] { return data::range(8); }).make_one_shot_iterator();
  const auto recursive = [](MultiStepContext& ctx, const PerDevice<at::Tensor>&) { ctx.run_op(); };
  expect_error([&] { strategy.run_steps_on_dataset(recursive, iterator); }, Code::FailedPrecondition,
               errors::kWrongContext, {"run_op was called inside a step"});
}

TEST(ContribSteps, TakeOutputsWhileTheyRun) {
  auto& strategy = towers(2);
  auto iterator = strategy.distribute_dataset([] { return data::range(4); }).make_one_shot_iterator();
  std::optional<MultiStepContext> copy;
  const auto step = [&](MultiStepContext& running, const PerDevice<at::Tensor>&) {
    if (!copy) running.set_non_tensor_output("of the first step", 1);
    copy = running;
  };
  auto ctx = strategy.run_steps_on_dataset(step, iterator, 2);
  EXPECT_TRUE(ctx.non_tensor_outputs().empty());
  auto moved = std::move(ctx);
  EXPECT_THROW(ctx.run_op(), OutOfRange);
  expect_error([&] { copy->set_non_tensor_output("late", 1); }, Code::FailedPrecondition, errors::kWrongContext,
               {"set_non_tensor_output was called when no step was running"});
  expect_error([&] { ctx.set_last_step_output("late", number(1)); }, Code::FailedPrecondition, errors::kWrongContext,
               {"set_last_step_output was called when no step was running"});
  expect_error([&] { ctx.set_non_tensor_output("late", 1); }, Code::FailedPrecondition, errors::kWrongContext,
               {"set_non_tensor_output was called when no step was running"});
}

TEST(ContribSteps, CheckTheirArguments) {
  auto& strategy = towers(2);
  const auto fresh = [&] {
    return strategy.distribute_dataset([] { return data::range(9); }).make_one_shot_iterator();
  };
  auto iterator = fresh();
  const auto step = [](MultiStepContext& ctx, const PerDevice<at::Tensor>& x) { ctx.set_last_step_output("x", x); };
  expect_error([&] { strategy.run_steps_on_dataset(step, iterator, 0); }, Code::InvalidArgument, errors::kBadOption,
               {"iterations must be >= 1, got 0"});
  EXPECT_THROW(strategy.run_steps_on_dataset(step, iterator, 5), OutOfRange);
  iterator = fresh();
  int calls = 0;
  const auto counted = [&](MultiStepContext& ctx, const PerDevice<at::Tensor>& x) {
    ++calls;
    step(ctx, x);
  };
  expect_error([&] { strategy.run_steps_on_dataset(counted, iterator, 2, {number(0)}); }, Code::InvalidArgument,
               errors::kStructure, {"got 1 for 2"});
  EXPECT_EQ(calls, 1);
  EXPECT_NO_THROW(strategy.run_steps_on_dataset(step, iterator, 1, {number(0), number(0)}));
  const auto without = [&](MultiStepContext& ctx, const PerDevice<at::Tensor>& x) {
    strategy.call_for_each_tower([&](const at::Tensor& mine) { ctx.set_last_step_output("x", mine); }, x);
  };
  expect_error([&] { strategy.run_steps_on_dataset(without, iterator); }, Code::InvalidArgument, errors::kNotReducible,
               {"needs an aggregation"});
}

TEST(ContribSteps, TakePairsInParts) {
  auto& strategy = towers(2);
  auto pairs = strategy
                   .distribute_dataset([] {
                     return data::range(8).map([](const at::Tensor& x) { return std::pair{x, x.mul(10)}; });
                   })
                   .make_one_shot_iterator();
  const auto ctx =
      strategy.run_steps_on_dataset([](MultiStepContext& c, const PerDevice<at::Tensor>&,
                                       const PerDevice<at::Tensor>& ten) { c.set_last_step_output("ten", ten); },
                                    pairs, 2);
  EXPECT_EQ(values_of(ctx.last_step_outputs().at("ten").values()), (Doubles{20, 30}));
}

}  // namespace
}  // namespace lockstep::contrib
