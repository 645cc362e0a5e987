#include "lockstep/strategy/snapshot.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/schedules.h"
#include "lockstep/nn/state.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// A training that is captured and restored continues with the same bits.
namespace lockstep {
namespace {

using Rows = std::pair<at::Tensor, at::Tensor>;
using torch::optim::AdamOptions;
using torch::optim::SGDOptions;

constexpr std::uint64_t kSeed = 11;

/// All kinds of state in one program: dropout, batch norm per replica, Adam, a scaler, windows of two calls, a
/// schedule, a variable of each kind, shuffled data.
struct Training {
  explicit Training(int replicas, std::uint64_t seed = kSeed)
      : strategy({.devices = test_devices(replicas), .seed = seed}),
        model(strategy.make<SmallNet>(16, 0.4)),
        optimizer(strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(1e-2))),
        scaler(strategy, {.initial_scale = 64, .growth_interval = 3}),
        seen(strategy.make_variable(
            at::zeros({}),
            {.name = "seen", .synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum})),
        calls(strategy.make_variable(at::zeros({}), {.name = "calls", .aggregation = Aggregation::OnlyFirstReplica})),
        batches(strategy.distribute(
            data::from_tensor_slices(Rows{fixed({37, 9}), fixed({37}).mul(3).abs().floor().clamp_max(3).to(at::kLong)})
                .shuffle(10)
                .repeat()
                .batch(12))),
        iterator(batches.iterator()) {
    optimizer.set_accumulate(2);
  }

  static at::Tensor fixed(at::IntArrayRef sizes) {
    at::Tensor all = torch::arange(1, 1 + c10::multiply_integers(sizes), at::TensorOptions(at::kCPU).dtype(at::kFloat));
    return all.mul(12.9898).sin().mul(1.5).reshape(sizes);
  }

  /// One update; returns every replica's losses.
  std::vector<at::Tensor> step() {
    std::vector<at::Tensor> losses;
    for (int call = 0; call < 2; ++call) {
      const auto batch = iterator.next();
      const auto of_replicas = strategy.run(
          [&](const Rows& rows) {
            const at::Tensor mine = loss_per_row(model->forward(rows.first), rows.second);
            optimizer.minimize(average_loss(mine, 24), scaler);
            seen.assign_add(static_cast<double>(rows.first.size(0)));
            calls.assign_add(1);
            return mine.detach().sum();
          },
          *batch);
      for (std::size_t k = 0; k < of_replicas.size(); ++k) losses.push_back(of_replicas[k]);
    }
    optimizer.set_learning_rate(plateau.observe(losses[0].item<double>()));
    losses.push_back(torch::randn({3}));  // drawn by the rest of the program
    return losses;
  }
  std::vector<at::Tensor> steps(int count) {
    std::vector<at::Tensor> all;
    for (int i = 0; i < count; ++i) {
      for (at::Tensor& loss : step()) all.push_back(loss.cpu());
    }
    for (const TensorDigest& digest : optimizer.digests())
      all.push_back(torch::tensor(static_cast<long>(digest.value)));
    for (std::size_t k = 0; k < model.size(); ++k) {
      for (const at::Tensor& buffer : model.replica(k)->buffers()) all.push_back(buffer.detach().clone());
    }
    for (const Variable* variable : {&seen, &calls}) {
      for (const at::Tensor& component : variable->values()) all.push_back(component.detach().clone());
    }
    all.push_back(
        torch::tensor({scaler.state().scale, static_cast<double>(scaler.state().good_steps), optimizer.learning_rate(),
                       static_cast<double>(optimizer.steps()), static_cast<double>(optimizer.skipped_steps())}));
    return all;
  }

  std::vector<NamedState> parts() {
    return {{"model", model}, {"optimizer", optimizer}, {"scaler", scaler},   {"plateau", plateau},
            {"seen", seen},   {"calls", calls},         {"batches", iterator}};
  }
  Snapshot capture() { return lockstep::capture(strategy, parts()); }
  void restore(const Snapshot& snapshot) { lockstep::restore(strategy, snapshot, parts()); }

  MirroredStrategy strategy;
  MirroredModule<SmallNet> model;
  MirroredOptimizer<torch::optim::Adam> optimizer;
  GradScaler scaler;
  PlateauSchedule plateau{.base = 1e-2, .factor = 0.5, .patience = 1};
  Variable seen, calls;
  DistributedDataset<Rows> batches;
  DistributedIterator<Rows> iterator;
};

class SnapshotOf : public testing::TestWithParam<int> {};

TEST_P(SnapshotOf, ATrainingGoesOnToTheSameBits) {
  Training training(GetParam());
  training.steps(7);
  const Snapshot snapshot = training.capture();
  const auto expected = training.steps(5);
  training.restore(snapshot);
  EXPECT_EQ(first_difference(training.steps(5), expected), "");
  training.restore(snapshot);
  EXPECT_EQ(first_difference(training.steps(5), expected), "") << "the second time";
}

TEST_P(SnapshotOf, ATrainingGoesOnInNewObjects) {
  std::optional<Training> first(std::in_place, GetParam());
  first->steps(7);
  const Snapshot snapshot = first->capture();
  const auto expected = first->steps(5);
  first.reset();
  Training second(GetParam(), /*seed=*/99);
  second.steps(2);
  second.restore(snapshot);
  EXPECT_EQ(first_difference(second.steps(5), expected), "");
  EXPECT_EQ(second.strategy.seed(), kSeed);
}

TEST_P(SnapshotOf, ATrainingBeforeItsFirstStep) {
  Training training(GetParam());
  const Snapshot snapshot = training.capture();
  const auto expected = training.steps(3);
  training.restore(snapshot);
  EXPECT_EQ(first_difference(training.steps(3), expected), "");
}

TEST_P(SnapshotOf, ATrainingDoesNotChangeWhenTrainingGoesOn) {
  Training training(GetParam());
  training.steps(2);
  const Snapshot snapshot = training.capture(), same = training.capture();
  training.steps(3);
  for (const auto& [name, value] : snapshot.shared) {
    EXPECT_TRUE(value.is_cpu() && value.is_contiguous() && !value.requires_grad()) << name;
    EXPECT_TRUE(same_bits(value, same.shared.at(name))) << name;
  }
  for (const auto& [name, values] : snapshot.by_replica) {
    EXPECT_EQ(std::ssize(values), GetParam()) << name;
    for (const auto& [replica, value] : values)
      EXPECT_TRUE(same_bits(value, same.by_replica.at(name).at(replica))) << name;
  }
  EXPECT_EQ(snapshot.texts, same.texts);
}

INSTANTIATE_TEST_SUITE_P(Replicas, SnapshotOf, testing::Values(1, 2, 4));

TEST(Snapshot, HasReadableNames) {
  Training training(2);
  training.steps(1);
  const Snapshot snapshot = training.capture();
  for (const char* name : {"model/first.weight", "model/unused", "optimizer/first.weight/exp_avg"})
    EXPECT_TRUE(snapshot.shared.contains(name)) << name;
  for (const char* name : {"model/norm.running_mean", "seen/components", "random/cpu"})
    EXPECT_TRUE(snapshot.by_replica.contains(name)) << name;
  EXPECT_EQ(snapshot.texts.at("optimizer/steps"), "1");
  EXPECT_EQ(snapshot.texts.at("optimizer/class"), "torch::optim::Adam");
  EXPECT_EQ(snapshot.texts.at("optimizer/group 0/lr"), "0.01");
  EXPECT_EQ(snapshot.texts.at("random/seed"), "11");
  EXPECT_EQ(snapshot.texts.at("replicas"), "2");
}

TEST(Snapshot, OfOtherReplicasGoesOnWithBuffersAsOneAndNewStreams) {
  Training four(4);
  four.steps(3);
  const Snapshot snapshot = four.capture();
  const double rows = four.seen.read().item<double>();
  Training two(2, 5), again(2, 6);
  for (Training* other : {&two, &again}) {
    lockstep::restore(other->strategy, snapshot,
                      {{"model", other->model}, {"optimizer", other->optimizer}, {"seen", other->seen}});
    EXPECT_EQ(other->seen.read().item<double>(), rows);
    const at::Tensor expected = four.model.named_buffers()["norm.running_mean"];
    for (std::size_t k = 0; k < 2; ++k)
      EXPECT_TRUE(same_bits(other->model.replica(k)->norm->running_mean, expected)) << k;
  }
  const auto draw = [](Training& training) { return training.strategy.run([] { return torch::randn({4}).cpu(); }); };
  const auto first = draw(two), second = draw(again);
  for (std::size_t k = 0; k < 2; ++k) EXPECT_TRUE(same_bits(first[k], second[k])) << "the snapshot decides";
  EXPECT_FALSE(same_bits(first[0], first[1]));
}

TEST(Snapshot, OfAVariableThatDiffersBetweenReplicasNeedsThem) {
  MirroredStrategy four(on_devices(4)), two(on_devices(2));
  Variable own = four.make_variable(at::zeros({2})), others = two.make_variable(at::zeros({2}));
  const Snapshot equal = capture(four, {{"own", own}});
  restore(two, equal, {{"own", others}});
  four.run([&] { own.assign(at::ones({2}).mul(get_replica_context().replica_id_in_sync_group())); });
  const Snapshot different = capture(four, {{"own", own}});
  expect_error(
      [&] {
        restore(two, different, {{"own", others}});
      },
      Code::InvalidArgument, errors::kSavedState, {"'own/components'", "4 replicas", "the strategy has 2"});
  own.assign(at::ones({2}));
  restore(four, different, {{"own", own}});
  for (int k = 0; k < 4; ++k) EXPECT_EQ(own.values()[static_cast<std::size_t>(k)].sum().item<double>(), 2 * k);
}

/// Every mismatch is found before anything changes.
TEST(Snapshot, ThatDoesNotFitChangesNothing) {
  Training training(2);
  training.steps(2);
  const Snapshot good = training.capture();
  const auto expect_refused = [&](const std::function<void(Snapshot&)>& damage, const std::string& named) {
    Snapshot bad = training.capture();
    damage(bad);
    expect_error([&] { training.restore(bad); }, Code::InvalidArgument, errors::kSavedState, {named}, named);
    const Snapshot after = training.capture();
    EXPECT_EQ(after.texts, good.texts) << named;
    for (const auto& [name, value] : good.shared) EXPECT_TRUE(same_bits(value, after.shared.at(name))) << name;
  };
  expect_refused([](Snapshot& s) { s.shared.erase("model/first.weight"); }, "'model/first.weight'");
  expect_refused([](Snapshot& s) { s.shared["model/second.bias"] = at::zeros({3}); }, "float32[3]");
  expect_refused([](Snapshot& s) { s.shared["model/second.bias"] = at::zeros({4}, at::kDouble); }, "float64[4]");
  expect_refused([](Snapshot& s) { s.shared["model/third.bias"] = at::zeros({3}); }, "'model/third.bias'");
  expect_refused([](Snapshot& s) { s.by_replica["model/norm.running_var"].erase(1); }, "no value for replica 1");
  expect_refused([](Snapshot& s) { s.by_replica["model/norm.running_var"][1] = at::zeros({2}); }, "running_var");
  expect_refused([](Snapshot& s) { s.shared.erase("optimizer/first.weight/exp_avg"); }, "'exp_avg'");
  expect_refused([](Snapshot& s) { s.shared["optimizer/fifth/exp_avg"] = at::zeros({2}); }, "fifth");
  expect_refused([](Snapshot& s) { s.texts["optimizer/class"] = "torch::optim::SGD"; }, "torch::optim::SGD");
  expect_refused([](Snapshot& s) { s.texts["optimizer/steps"] = "-1"; }, "'optimizer/steps'");
  expect_refused([](Snapshot& s) { s.texts["optimizer/group 0/lr"] = "fast"; }, "'fast'");
  expect_refused([](Snapshot& s) { s.texts["scaler/scale"] = "0"; }, "'scaler/scale'");
  expect_refused([](Snapshot& s) { s.texts.erase("plateau/best"); }, "'plateau/best'");
  expect_refused([](Snapshot& s) { s.by_replica["seen/components"][0] = at::zeros({2}); }, "'seen/components'");
  expect_refused([](Snapshot& s) { s.texts["random/seed"] = "x"; }, "'random/seed'");
  expect_refused([](Snapshot& s) { s.by_replica.erase("random/cpu"); }, "'random/cpu'");
  expect_refused([](Snapshot& s) { s.version = 2; }, "version must be 1, got 2");
}

TEST(Snapshot, IsRefusedWhereStateIsNotWhole) {
  Training training(2);
  const auto batch = training.iterator.next();
  const auto half_a_window = [&] {
    training.strategy.run(
        [&](const Rows& rows) {
          training.optimizer.minimize(average_loss(loss_per_row(training.model->forward(rows.first), rows.second), 24),
                                      training.scaler);
        },
        *batch);
  };
  half_a_window();
  expect_error([&] { training.capture(); }, Code::FailedPrecondition, errors::kOptimizer,
               {"1 call of minimize", "after 1 more call"});
  half_a_window();
  training.capture();
  expect_error([&] { training.strategy.run([&] { training.capture(); }); }, Code::FailedPrecondition,
               errors::kWrongContext, {"capture belongs outside"});
  const Snapshot snapshot = training.capture();
  expect_error([&] { training.strategy.run([&] { training.restore(snapshot); }); }, Code::FailedPrecondition,
               errors::kWrongContext, {"restore belongs outside"});
}

TEST(Snapshot, PartsNeedNamesOfTheirOwn) {
  MirroredStrategy strategy(on_devices(1));
  auto model = strategy.make<SmallNet>();
  for (const char* name : {"", "a/b", "random"}) {
    expect_error(
        [&] {
          capture(strategy, {{name, model}});
        },
        Code::InvalidArgument, errors::kBadOption, {"a name of its own"}, name);
  }
  expect_error(
      [&] {
        capture(strategy, {{"model", model}, {"model", model}});
      },
      Code::InvalidArgument, errors::kBadOption, {"the name 'model'"});
}

/// A user-defined part.
struct Counter : Stateful {
  int count = 0;
  void capture(Snapshot& into, const std::string& name) const override {
    into.texts[name + "/count"] = std::to_string(count);
  }
  void restore(const Snapshot& from, const std::string& name) override {
    count = std::stoi(from.texts.at(name + "/count"));
  }
};

TEST(Snapshot, TakesPartsOfTheProgramsOwn) {
  MirroredStrategy strategy(on_devices(1));
  Counter counter;
  counter.count = 3;
  const Snapshot snapshot = capture(strategy, {{"counter", counter}});
  counter.count = 8;
  restore(strategy, snapshot, {{"counter", counter}});
  EXPECT_EQ(counter.count, 3);
}

TEST(Snapshot, OfALaterPassGoesBackToThatPass) {
  MirroredStrategy strategy({.devices = test_devices(2), .seed = 3});
  const auto batches = strategy.distribute(data::range(20).shuffle(20).batch(4));
  const auto pass = [&] {
    std::vector<at::Tensor> all;
    for (const auto& batch : batches) all.push_back(batch[0].clone());
    return all;
  };
  pass();
  auto iterator = batches.iterator();
  iterator.next();
  const Snapshot snapshot = capture(strategy, {{"batches", iterator}});
  const auto third = pass(), fourth = pass();
  EXPECT_NE(first_difference(third, fourth), "");
  restore(strategy, snapshot, {{"batches", iterator}});
  EXPECT_EQ(first_difference(pass(), third), "");
}

}  // namespace
}  // namespace lockstep
