// What the workers of a job see of each other. Every worker runs these tests, in the same order:
// `lockstep run -n 2 multi_worker_together_test`. Each test makes a strategy of its own.

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/worker_group.h"
#include "lockstep/compat.h"
#include "lockstep/lockstep.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"

namespace ls = lockstep;
namespace nn = torch::nn;

namespace {

struct Net : nn::Module {
  Net() {
    register_module("layer", layer);
    register_module("norm", norm);
  }
  torch::Tensor forward(const torch::Tensor& x) { return layer->forward(norm->forward(x)); }
  nn::Linear layer{4, 2};
  nn::BatchNorm1d norm{4};
};

/// The other workers, and the names of the program's collectives that this one has begun with them.
class Noted final : public ls::WorkerGroup {
 public:
  explicit Noted(std::unique_ptr<ls::WorkerGroup> group)
      : WorkerGroup({group->rank(), group->workers(), group->replicas()}), group_(std::move(group)) {}

  Ticket submit(Channel channel, const ls::Collective& collective, ls::Deadline limit) override {
    if (channel == kProgram) {
      const std::lock_guard lock(mutex);
      names.emplace_back(collective.name);
      if (collective.implementation == ls::Implementation::Ring) names.back() += ", by a ring";
    }
    return group_->submit(channel, collective, limit);
  }
  void wait(Ticket ticket) override { group_->wait(ticket); }
  void barrier(std::string_view name, ls::Deadline deadline) override { group_->barrier(name, deadline); }
  void set_place(std::int64_t step, std::string_view place) override { group_->set_place(step, place); }
  void report(const ls::Error& error) override { group_->report(error); }
  void report(const std::string& what) override { group_->report(what); }

  /// How many names have this in them.
  static int count(const std::string& part) {
    const std::lock_guard lock(mutex);
    return static_cast<int>(std::count_if(names.begin(), names.end(),
                                          [&](const std::string& name) { return name.find(part) != name.npos; }));
  }

 private:
  static inline std::mutex mutex;
  static inline std::vector<std::string> names;
  std::unique_ptr<ls::WorkerGroup> group_;
};

ls::WorkerGroupMaker real_maker = nullptr;
struct NoteAll : testing::Environment {
  void SetUp() override {  // the component has registered its own by then
    real_maker =
        ls::set_worker_group_maker([](const ls::WorkerGroupOptions& options) -> std::unique_ptr<ls::WorkerGroup> {
          return std::make_unique<Noted>(real_maker(options));
        });
  }
};
const auto* const note_all = testing::AddGlobalTestEnvironment(new NoteAll);

/// Two replicas on each worker.
struct Together : testing::Test {
  ls::MultiWorkerMirroredStrategy strategy{{.devices = ls::test_devices(2), .intra_op_threads = 1, .seed = 3}};
  const int workers = strategy.num_workers();
  const int rank = strategy.worker_id();
  /// A file that all workers see.
  std::string file = std::string(std::getenv("LOCKSTEP_TEST_FOLDER") ? std::getenv("LOCKSTEP_TEST_FOLDER") : "/tmp") +
                     "/" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".safetensors";

  template <class Model, class Optimizer>
  void train(Model& model, Optimizer& optimizer, int steps) {
    for (int s = 0; s < steps; ++s) {
      strategy.run([&] {
        auto x = torch::rand({3, 4});
        optimizer.minimize(ls::average_loss(model->forward(x).square().sum(1)));
      });
    }
  }
};

TEST_F(Together, NumbersAreGlobal) {
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2 * workers);
  EXPECT_EQ(strategy.num_local_replicas(), 2);
  EXPECT_EQ(strategy.is_chief(), rank == 0);
  const auto ids = strategy.local_results(
      strategy.run([] { return torch::tensor(ls::get_replica_context().replica_id_in_sync_group()); }));
  EXPECT_EQ(ids[1].item<int>(), 2 * rank + 1);
}

TEST_F(Together, ErrorsCountReplicasOverAllWorkers) {
  const auto different = ls::PerReplica<std::vector<torch::Tensor>>::generate(
      2, [](std::size_t k) { return std::vector<torch::Tensor>(k + 1, torch::ones({})); });
  try {
    strategy.reduce(ls::ReduceOp::Sum, different);
    FAIL() << "structures that differ were reduced";
  } catch (const ls::InvalidArgument& e) {
    for (const int replica : {2 * rank, 2 * rank + 1})
      EXPECT_NE(e.text().seen.find("replica " + std::to_string(replica) + ": "), std::string::npos) << e.what();
  }
}

TEST_F(Together, CollectivesReachAllWorkers) {
  const auto sums = strategy.run([] {
    auto& replica = ls::get_replica_context();
    const auto id = torch::full({3}, replica.replica_id_in_sync_group(), torch::kFloat);
    const auto rows =
        torch::full({replica.replica_id_in_sync_group() + 1, 1}, replica.replica_id_in_sync_group(), torch::kLong);
    return std::tuple{replica.all_reduce(ls::ReduceOp::Sum, id), replica.all_gather(rows, 0),
                      replica.all_reduce(ls::ReduceOp::Mean, torch::complex(id, id))};
  });
  const int n = strategy.num_replicas_in_sync();
  for (const auto& [sum, rows, mean] : strategy.local_results(sums)) {
    EXPECT_EQ(sum[0].template item<float>(), static_cast<float>(n * (n - 1) / 2));
    EXPECT_EQ(rows.size(0), n * (n + 1) / 2);
    EXPECT_EQ(rows[-1].template item<int>(), n - 1);
    EXPECT_EQ(torch::real(mean)[0].template item<float>(), static_cast<float>(n - 1) / 2);
  }
  EXPECT_EQ(strategy.reduce(ls::ReduceOp::Sum, strategy.run([] { return 1; })), n);
  EXPECT_EQ(strategy.reduce(ls::ReduceOp::Sum, torch::tensor(2)).item<int>(), 2 * workers);
  EXPECT_EQ(strategy.reduce(ls::ReduceOp::Sum, rank), workers * (workers - 1) / 2);
}

TEST_F(Together, TheProgramsSumsTakeTheRingIfAskedFor) {
  const std::string first = ls::tests_are_on_gpu() ? "copied through host memory, up to" : "AUTO: up to";
  EXPECT_NE(strategy.describe().find(first), std::string::npos) << strategy.describe();
  const ls::PerReplica<torch::Tensor> ones({torch::ones({3}), torch::ones({3})});
  EXPECT_THROW(strategy.extended().reduce_to(ls::ReduceOp::Sum, ones, strategy.devices()[0],
                                             {.implementation = ls::Implementation::Ring}),
               ls::Error);  // which this strategy was not made for

  ls::MultiWorkerMirroredStrategy ring({.devices = ls::test_devices(2),
                                        .communication = {.implementation = ls::Implementation::Ring},
                                        .intra_op_threads = 1});
  EXPECT_NE(ring.describe().find("RING: "), std::string::npos) << ring.describe();
  const int before = Noted::count("by a ring");
  const auto sums = ring.run([] {
    auto& replica = ls::get_replica_context();
    return std::pair{
        replica.all_reduce(ls::ReduceOp::Mean, torch::full({1001}, replica.replica_id_in_sync_group() + 0.5)),
        replica.all_reduce(ls::ReduceOp::Sum, torch::ones({}, torch::kInt))};
  });
  const int n = ring.num_replicas_in_sync();
  for (const auto& [mean, sum] : ring.local_results(sums)) {
    EXPECT_EQ(mean[1000].template item<double>(), n / 2.0);
    EXPECT_EQ(sum.template item<int>(), n);
  }
  EXPECT_EQ(ring.reduce(ls::ReduceOp::Sum, ones)[2].item<int>(), n);
  EXPECT_EQ(Noted::count("by a ring") - before, 3);
}

TEST_F(Together, TheMeanCountsTheRowsOfAllWorkers) {
  const auto values = strategy.values_from_function([](const ls::ValueContext& c) {
    return torch::full({c.replica_id_in_sync_group}, c.replica_id_in_sync_group, torch::kDouble);
  });
  const int n = strategy.num_replicas_in_sync();
  double sum = 0, rows = 0;
  for (int k = 0; k < n; ++k) sum += k * k, rows += k;
  EXPECT_NEAR(strategy.reduce(ls::ReduceOp::Mean, values, 0).item<double>(), sum / rows, 1e-12);
}

TEST_F(Together, GradientsOfCollectivesReachAllWorkers) {
  strategy.run([&] {
    auto& replica = ls::get_replica_context();
    auto x = torch::full({2}, replica.replica_id_in_sync_group() + 1.0, torch::requires_grad());
    const auto all = replica.all_gather(x, 0);
    (all * all).sum().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), 2.0 * replica.num_replicas_in_sync() * x.detach()));
  });
}

TEST_F(Together, BroadcastGivesTheChiefsValue) {
  const auto mine = rank == 0 ? torch::arange(5) : torch::zeros({2, 2});
  EXPECT_TRUE(torch::equal(strategy.broadcast(mine), torch::arange(5)));
  EXPECT_EQ(strategy.broadcast(std::pair{rank + 7, torch::tensor(rank)}).first, 7);
  strategy.barrier();
}

TEST_F(Together, WhatCannotTravelIsRefusedOnAllWorkers) {
  const auto refuses = [](const char* part, const auto& call) {
    try {
      call();
      ADD_FAILURE() << part;
    } catch (const ls::Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const auto sparse = torch::eye(3).to_sparse();
  refuses("a sparse tensor cannot travel", [&] { strategy.broadcast(rank == 0 ? sparse : torch::eye(3)); });
  refuses("a sparse tensor cannot travel", [&] { strategy.reduce(ls::ReduceOp::Sum, sparse); });
  refuses("an undefined tensor cannot travel", [&] { strategy.broadcast(torch::Tensor()); });
  refuses("15 dimensions", [&] { strategy.broadcast(torch::zeros(std::vector<std::int64_t>(15, 1))); });
  strategy.barrier();  // the job goes on
}

/// Throws on every worker, for the same reason; the job goes on.
template <class F>
void expect_refused(std::initializer_list<const char*> parts, const F& call) {
  try {
    call();
    ADD_FAILURE() << *parts.begin();
  } catch (const ls::Error& error) {
    for (const char* part : parts) EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST_F(Together, BroadcastGivesTheChiefsVectorWhateverItsSize) {
  const auto numbers = strategy.broadcast(rank == 0 ? std::vector{1.5, 2.5, 3.5} : std::vector<double>());
  EXPECT_EQ(numbers, (std::vector{1.5, 2.5, 3.5}));
  const auto tensors = strategy.broadcast(std::vector<torch::Tensor>(rank == 0 ? 2 : 5, torch::full({2}, rank)));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_TRUE(torch::equal(tensors[1], torch::full({2}, 0)));
  EXPECT_TRUE(strategy.broadcast(std::vector<int>(static_cast<std::size_t>(rank))).empty());
  const ls::IndexedSlices rows{torch::full({1}, 1.0), torch::tensor({0}), {rank + 3}};
  EXPECT_EQ(strategy.broadcast(rows).dense_shape, (std::vector<std::int64_t>{3}));
}

TEST_F(Together, StructuresOfDifferentSizesAreRefusedByTheirBroadcast) {
  std::map<std::string, int> counts{{"a", 1}};
  if (rank == 0) counts["b"] = 2;
  expect_refused({"the structure to broadcast of worker", "differs from that of worker", "help:"},
                 [&] { strategy.broadcast(counts); });
  const std::vector<std::pair<int, double>> pairs(rank == 0 ? 3 : 0);
  expect_refused({"the structure to broadcast of worker"}, [&] { strategy.broadcast(pairs); });
  strategy.barrier();
}

TEST_F(Together, ErrorsOfBroadcastDoNotSpeakOfReducing) {
  const auto said = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const ls::Error& error) {
      return error.what();
    }
    return "";
  };
  const auto send = [&](auto number) { strategy.broadcast(number); };  // one place in the source, as workers compare it
  const auto fraction = said([&] { rank == 0 ? send(2.5) : send(1); });
  if (rank > 0) {
    EXPECT_NE(fraction.find("the chief's number 2.5 does not fit into int"), fraction.npos) << fraction;
    EXPECT_EQ(fraction.find("reduce"), fraction.npos) << fraction;
    EXPECT_EQ(fraction.find("mean"), fraction.npos) << fraction;
  }
  const auto large = said([&] { strategy.broadcast(~0ULL); });
  EXPECT_NE(large.find("is too large to broadcast"), large.npos) << large;
  const auto text = said([&] { strategy.broadcast(std::string("name")); });
  EXPECT_NE(text.find("cannot be broadcast"), text.npos) << text;
  strategy.barrier();
}

TEST_F(Together, AStrictStrategyRefusesToWriteEachWorkersOwnFirstReplica) {
  ls::MultiWorkerMirroredStrategy strict({.devices = ls::test_devices(2), .intra_op_threads = 1, .strict = true});
  auto v = strict.make_variable(torch::zeros({2}), {.aggregation = ls::Aggregation::OnlyFirstReplica});
  strict.run([&] {
    const std::initializer_list<const char*> parts{"every worker would write its own first replica's value",
                                                   "Aggregation::Mean"};
    expect_refused(parts, [&] { v.assign_add(torch::ones({2})); });
    expect_refused(parts, [&] { v[0].assign(torch::ones({})); });
    expect_refused(parts, [&] { v.scatter_add({torch::ones({1}), torch::tensor({0}), {2}}); });
  });
  EXPECT_TRUE(torch::equal(v.read(), torch::zeros({2})));
}

TEST_F(Together, VariablesBeginWithTheChiefsValue) {
  auto v = strategy.make_variable(torch::full({2}, rank + 1.0), {.aggregation = ls::Aggregation::Mean});
  EXPECT_GT(Noted::count("initial value of variable 'Variable'"), 0);
  EXPECT_EQ(v.read()[0].item<double>(), 1.0);
  strategy.run([&] { v.assign_add(torch::full({2}, 1.0 * ls::get_replica_context().replica_id_in_sync_group())); });
  EXPECT_EQ(v.read()[0].item<double>(), 1 + (strategy.num_replicas_in_sync() - 1) / 2.0);
}

TEST_F(Together, ANumberThatAllReplicasOfAWorkerAssignIsStillOneOfMany) {
  auto v = strategy.make_variable(torch::zeros({}), {.aggregation = ls::Aggregation::Mean});
  strategy.run([&] { v.assign(rank); });
  EXPECT_EQ(v.read().item<double>(), (workers - 1) / 2.0);
}

TEST_F(Together, RowsReachTheVariablesOfAllWorkers) {
  auto sum = strategy.make_variable(torch::zeros({3}), {.aggregation = ls::Aggregation::Sum});
  auto mean = strategy.make_variable(torch::zeros({3}), {.aggregation = ls::Aggregation::Mean});
  strategy.run([&] {
    const auto id = ls::get_replica_context().replica_id_in_sync_group();
    const ls::IndexedSlices rows{torch::full({1}, 1.0 * id), torch::tensor({id % 3}), {3}};
    sum.scatter_add(rows);
    mean.scatter_sub(rows);
  });
  const int n = strategy.num_replicas_in_sync();
  EXPECT_EQ(sum.read().sum().item<double>(), n * (n - 1) / 2);
  EXPECT_NEAR(mean.read().sum().item<double>(), -(n - 1) / 2.0, 1e-6);
}

TEST_F(Together, AStateThatIsASumIsSharedOutAmongAllReplicas) {
  auto v = strategy.make_variable(
      torch::zeros({}), {.synchronization = ls::Synchronization::OnRead, .aggregation = ls::Aggregation::Sum});
  v.load_state(torch::full({}, 12.0f));
  EXPECT_EQ(v.read().item<double>(), 12);
  EXPECT_GT(Noted::count("read of variable 'Variable'"), 0);
  EXPECT_EQ(v.values()[0].item<double>(), 12.0 / strategy.num_replicas_in_sync());
}

TEST_F(Together, DevicesAreKnownByTheirNames) {
  auto& extended = strategy.extended();
  int calls = 0;
  extended.update_non_slot(extended.non_slot_devices({}), [&] { ++calls; });
  extended.update_non_slot({ls::test_devices(2)[1]}, [&] { ++calls; });
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(extended.should_checkpoint(), rank == 0);
}

TEST_F(Together, ModelsBeginWithTheChiefsValues) {
  auto model = strategy.make([&] {
    Net net;
    const torch::NoGradGuard no_grad;
    net.layer->weight.fill_(rank + 1);
    net.norm->running_mean.fill_(rank + 1);
    return std::make_shared<Net>(net);
  });
  EXPECT_EQ(model.named_parameters()["layer.weight"][0][0].item<float>(), 1);
  EXPECT_EQ(model.named_buffers()["norm.running_mean"][0].item<float>(), 1);
}

TEST_F(Together, BuffersAreAveragedOverAllWorkers) {
  auto model = strategy.make<Net>();
  strategy.run([&] {
    const int id = ls::get_replica_context().replica_id_in_sync_group();
    model->norm->running_mean.fill_(id);
    model->norm->num_batches_tracked.fill_(id + 5);
  });
  const auto buffers = model.named_buffers();
  EXPECT_EQ(buffers["norm.running_mean"][0].item<float>(), static_cast<float>(strategy.num_replicas_in_sync() - 1) / 2);
  EXPECT_EQ(buffers["norm.num_batches_tracked"].item<int>(), 5);
}

TEST_F(Together, SparseBuffersAreTheSameEverywhereOrRefused) {
  const auto build = [](float weight) {
    auto net = std::make_shared<Net>();
    net->register_buffer("edges", (torch::eye(3) * weight).to_sparse());
    return net;
  };
  auto model = strategy.make([&] { return build(2); });
  model.synchronize_buffers();
  EXPECT_TRUE(model.named_buffers()["edges"].to_dense().equal(torch::eye(3) * 2));
  try {
    strategy.make([&] { return build(static_cast<float>(rank + 1)); });
    ADD_FAILURE() << "workers made different ones";
  } catch (const ls::Error& error) {
    EXPECT_NE(std::string(error.what()).find("edges"), std::string::npos) << error.what();
  }
}

TEST_F(Together, LossesAreAveragedOverTheRowsOfAllWorkers) {
  const auto shares = strategy.run([] {
    const int rows = ls::get_replica_context().replica_id_in_sync_group();  // the first has none
    return ls::average_loss(torch::ones({rows}));
  });
  EXPECT_NEAR(strategy.reduce(ls::ReduceOp::Sum, shares).item<double>(), 1, 1e-6);
}

TEST_F(Together, BatchesTellTheRowsOfAllWorkers) {
  const int n = strategy.num_replicas_in_sync();
  for (const auto assignment : {ls::Assignment::ByReplica, ls::Assignment::TensorFlow}) {
    for (const int rows : {6 * n - 1, 2 * n + 1}) {  // the last batch has too few rows for some replicas, or not
      int steps = 0;
      for (const auto& batch : strategy.distribute(ls::data::from_tensor_slices(torch::rand({rows})).batch(2 * n),
                                                   {.assignment = assignment})) {
        int empty = 0, here = 0;
        for (const auto& mine : batch) {
          here += static_cast<int>(mine.size(0));
          empty += mine.size(0) == 0 ? 1 : 0;
        }
        const auto all = ls::global_rows(batch);
        EXPECT_EQ(all, strategy.reduce(ls::ReduceOp::Sum, here));
        const bool some_are_empty = strategy.reduce(ls::ReduceOp::Sum, empty) > 0;
        const int before = Noted::count("average_loss");
        const auto are_equal = strategy.run(
            [&](const torch::Tensor& mine) {
              return torch::equal(ls::average_loss(mine.exp()), ls::average_loss(mine.exp(), all));
            },
            batch);
        for (const bool each : are_equal) EXPECT_TRUE(each);
        EXPECT_EQ(Noted::count("average_loss") - before, some_are_empty ? 1 : 0) << rows << " rows, step " << steps;
        // What the program has cut is counted again.
        const auto halves =
            batch.map([](const torch::Tensor& mine) { return mine.slice(0, 0, (mine.size(0) + 1) / 2); });
        const auto shares =
            strategy.run([&](const torch::Tensor& mine) { return ls::average_loss(torch::ones_like(mine)); }, halves);
        EXPECT_NEAR(strategy.reduce(ls::ReduceOp::Sum, shares).item<double>(), 1, 1e-6);
        ++steps;
      }
      EXPECT_GE(steps, 2);
    }
  }
}

/// Batches that only their worker has: worker k has k + 1 steps.
ls::DistributedDataset<torch::Tensor> uneven_batches(ls::Strategy& strategy, int fails_at = -1) {
  return strategy.distribute_from_function([&, fails_at](const ls::InputContext& input) {
    const bool fails = input.input_pipeline_id + 1 == input.num_input_pipelines;
    return ls::data::from_tensor_slices(torch::arange(3 + 4 * input.input_pipeline_id))
        .map([fails, fails_at](const torch::Tensor& x) {
          if (fails && x.item<int>() == fails_at) throw std::runtime_error("a bad row");
          return x;
        })
        .batch(2);
  });
}

TEST_F(Together, WorkersAgreeOnTheNextStepWhileTheyComputeThisOne) {
  const auto batches = uneven_batches(strategy);
  for (int epoch = 0; epoch < 3; ++epoch) {
    const int before = Noted::count("distributed dataset");
    int steps = 0, rows = 0;
    for (const auto& batch : batches) {
      ++steps;
      // Of this step and of the next one: nobody waits for a meeting between this line and the next step.
      EXPECT_EQ(Noted::count("distributed dataset") - before, steps + 1);
      rows += static_cast<int>(ls::global_rows(batch));
    }
    EXPECT_EQ(steps, workers);
    EXPECT_EQ(rows, 3 * workers + 2 * workers * (workers - 1));
    EXPECT_EQ(Noted::count("distributed dataset") - before, workers + 1);
  }
}

TEST_F(Together, ALoopMayEndBeforeTheData) {
  const auto batches = uneven_batches(strategy);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const auto& batch : batches) {
      EXPECT_EQ(strategy.reduce(ls::ReduceOp::Sum, strategy.run([](const torch::Tensor&) { return 1; }, batch)),
                2 * workers);
      break;
    }
    strategy.barrier();
    auto one = batches.iterator();
    auto other = batches.iterator();
    EXPECT_TRUE(one.next());
    EXPECT_TRUE(other.next());
    EXPECT_EQ(strategy.reduce(ls::ReduceOp::Sum, 1), workers);
    EXPECT_TRUE(other.next());
  }
}

TEST_F(Together, WorkersHearOfAStepThatOneOfThemCannotRead) {
  const int last = workers - 1;
  auto steps = uneven_batches(strategy, 4).iterator();  // in the second step of the last worker
  EXPECT_TRUE(steps.next());
  for (int again = 0; again < 2; ++again) {
    try {
      steps.next();
      ADD_FAILURE() << "there is no such step";
    } catch (const std::exception& error) {
      const std::string expected =
          rank == last ? "a bad row" : "worker " + std::to_string(last) + " could not read the next step";
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
  strategy.barrier();  // the job goes on
  auto unasked = uneven_batches(strategy, 4).iterator();
  EXPECT_TRUE(unasked.next());  // nobody asks for the step that fails
  EXPECT_EQ(strategy.reduce(ls::ReduceOp::Sum, 1), workers);
}

TEST_F(Together, WorkersHoldTheSameWeightsAfterTraining) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
  optimizer.set_digest({.every = 1});
  train(model, optimizer, 5);
  const auto digest = torch::tensor(static_cast<std::int64_t>(ls::combine(optimizer.digests())));
  EXPECT_TRUE(torch::equal(strategy.broadcast(digest), digest));
}

TEST_F(Together, SizesOfLossesThatDifferBetweenWorkersAreWarnedOfOnce) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
  const auto batch = strategy.split(torch::ones({6, 4}));
  const auto step = [&](int size) {
    strategy.run([&](const torch::Tensor& x) { optimizer.minimize(ls::average_loss(model->forward(x).sum(1), size)); },
                 batch);
  };
  const ls::LoggedLines logged;
  step(50);
  EXPECT_EQ(logged.count("was given the size"), 0);
  for (int steps = 0; steps < 2; ++steps) step(50 + rank);
  EXPECT_EQ(logged.count("was given the size 50 on worker 0 and 51 on worker 1"), workers > 1 ? 1 : 0);
}

TEST_F(Together, WorkersAgreeOnCallsOfAWindowThatAreDropped) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
  optimizer.set_accumulate(2);
  std::vector<bool> has_updated;
  for (int call = 0; call < 5; ++call) {
    const auto updates = strategy.run([&] {
      // Only the chief's replicas can see that their gradients are gone: the others have had nothing but zeros.
      const bool is_updated =
          optimizer.minimize(ls::average_loss(model->forward(torch::rand({3, 4})).sum(1) * (rank == 0 ? 1 : 0), 12));
      if (call == 0) model->zero_grad();
      return is_updated;
    });
    has_updated.push_back(updates[0]);
  }
  EXPECT_EQ(has_updated, (std::vector{false, false, true, false, true}));
}

TEST_F(Together, UnusedParametersCountAsZero) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
  const auto before = model.named_parameters()["layer.weight"].clone();
  for (int s = 0; s < 3; ++s) {  // only the last replica of all uses the layer, and not in the first step
    strategy.run([&] {
      const bool uses =
          s > 0 && ls::get_replica_context().replica_id_in_sync_group() + 1 == strategy.num_replicas_in_sync();
      const auto x = torch::ones({1, 4});
      const auto seen = model->norm->weight.sum() + (uses ? model->layer->weight.sum() : torch::zeros({}));
      optimizer.minimize(seen + 0 * x.sum());
    });
  }
  EXPECT_TRUE(torch::allclose(model.named_parameters()["layer.weight"], before - 0.2));
}

TEST_F(Together, GivenGradientsOfAllReplicasCountOnce) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(1.0));
  const auto before = model.named_parameters()["layer.bias"].clone();
  strategy.run([&] {
    torch::OrderedDict<std::string, torch::Tensor> given;
    given.insert("layer.bias", torch::ones({2}));
    optimizer.apply_gradients(given, ls::GradientsOf::AllReplicas);
  });
  EXPECT_TRUE(torch::allclose(model.named_parameters()["layer.bias"], before - 1));
}

TEST_F(Together, TheChiefSavesAndAllLoad) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
  train(model, optimizer, 3);
  // Another folder on every worker: only the chief's is written to, and read.
  const auto mine = file + std::to_string(rank);
  std::filesystem::remove(mine);
  ls::save(mine, model, optimizer);
  EXPECT_EQ(std::filesystem::exists(mine), rank == 0);
  const auto saved = ls::combine(optimizer.digests());
  train(model, optimizer, 2);
  EXPECT_NE(ls::combine(optimizer.digests()), saved);
  ls::load(mine, model, optimizer);
  EXPECT_EQ(ls::combine(optimizer.digests()), saved);
  EXPECT_EQ(optimizer.steps(), 3);
  train(model, optimizer, 1);
  ls::save(mine + ".own", model, {.this_worker_only = true});
  EXPECT_TRUE(std::filesystem::exists(mine + ".own"));
  std::filesystem::remove(mine);
  std::filesystem::remove(mine + ".own");
}

TEST_F(Together, ParametersThatNoStepHasReachedAreLoadedToo) {
  struct Rows : nn::Module {
    Rows() { register_module("rows", rows), register_module("unused", unused); }
    nn::Embedding rows{nn::EmbeddingOptions(4, 2).sparse(true)};
    nn::Linear unused{4, 2};
  };
  for (const double momentum : {0.0, 0.9}) {
    for (const int steps : {0, 2}) {
      auto model = strategy.make<Rows>();
      auto optimizer =
          strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1).momentum(momentum));
      const auto train_rows = [&] {
        strategy.run([&] { optimizer.minimize(model->rows->forward(ls::here(torch::tensor({1, 3}))).square().sum()); });
      };
      for (int s = 0; s < steps; ++s) train_rows();
      ls::save(file, model, optimizer);
      const auto saved = ls::combine(optimizer.digests());
      train_rows();
      ls::load(file, model, optimizer);
      EXPECT_EQ(ls::combine(optimizer.digests()), saved) << momentum << ", " << steps << " steps";
      EXPECT_EQ(optimizer.steps(), steps);
      train_rows();
    }
  }
}

TEST_F(Together, AFailedLoadFailsEverywhere) {
  auto model = strategy.make<Net>();
  EXPECT_THROW(ls::load(file + ".missing", model), ls::Error);
  EXPECT_THROW(ls::save("/no/such/folder/file", model), ls::Error);
  strategy.barrier();  // the job goes on
}

TEST_F(Together, StrategiesFollowEachOther) {
  for (int i = 0; i < 20; ++i) {
    ls::MultiWorkerMirroredStrategy another({.intra_op_threads = 1});
    EXPECT_EQ(another.reduce(ls::ReduceOp::Sum, another.run([] { return 1; })), workers);
  }
}

TEST_F(Together, APolicyWithoutEffectIsWarnedOfOnce) {
  const ls::LoggedLines logged;
  const auto off = ls::data::range(24).batch(12).with_options({.auto_shard_policy = ls::AutoShardPolicy::Off});
  for (int epoch = 0; epoch < 3; ++epoch) strategy.distribute(off);
  EXPECT_EQ(logged.count("AutoShardPolicy::Off has no effect"), 1);
}

// names: TF_CONFIG, cluster_spec, task_type, task_id
TEST(CompatTogether, TheNamesOfTensorFlowReachAllWorkers) {
  namespace v2 = ls::compat::v2;
  namespace v1 = ls::compat::v1;
  const v2::experimental::MultiWorkerMirroredStrategy strategy(
      ls::MultiWorkerOptions{.devices = ls::test_devices(2), .intra_op_threads = 1, .seed = 3});
  const int n = strategy.num_replicas_in_sync(), rank = strategy.core().worker_id();
  EXPECT_EQ(n, 2 * strategy.core().num_workers());
  EXPECT_TRUE(strategy.extended().experimental_between_graph());
  EXPECT_TRUE(strategy.extended().experimental_should_init());
  EXPECT_EQ(strategy.extended().should_checkpoint(), rank == 0);
  EXPECT_EQ(strategy.extended().should_save_summary(), rank == 0);

  const auto sums = strategy.experimental_run_v2(
      [](const torch::Tensor& x) {
        const auto replica = v2::get_replica_context();
        return replica.all_reduce(v2::ReduceOp::SUM, x + replica.replica_id_in_sync_group());
      },
      std::tuple{torch::ones({})});
  EXPECT_EQ(strategy.experimental_local_results(sums)[1].item<int>(), n + n * (n - 1) / 2);
  EXPECT_EQ(strategy.reduce("mean", sums, v2::None).item<int>(), n + n * (n - 1) / 2);

  auto rows = strategy.experimental_make_numpy_dataset(torch::arange(4 * n)).batch(2 * n);
  int sum = 0;
  for (const auto& batch : strategy.experimental_distribute_dataset(rows)) {
    const auto parts = strategy.experimental_run_v2([](const torch::Tensor& x) { return x.sum(); }, std::tuple{batch});
    sum += strategy.reduce(v2::ReduceOp::SUM, parts, v2::None).item<int>();
  }
  EXPECT_EQ(sum, 2 * n * (4 * n - 1));

  // With auto-sharding off each worker has the rows that it reads: here 2 n of its own, a step each.
  v2::Options off;
  off.experimental_distribute.auto_shard = false;
  const auto own = ls::data::range(2 * n * rank, 2 * n * (rank + 1)).batch(n).with_options(off);
  const auto first_rows = [&](const auto& step) { return step[0][0].template item<int>(); };
  EXPECT_EQ(first_rows(strategy.experimental_distribute_dataset(own).iterator().get_next()), 2 * n * rank);
  EXPECT_EQ(first_rows(v1::Strategy(strategy.core()).make_dataset_iterator(own).get_next()), 2 * n * rank);
  int steps_of_own = 0;
  for (const auto& batch : strategy.experimental_distribute_dataset(own)) {
    EXPECT_GE(batch[1][0].item<int>(), 2 * n * rank);
    ++steps_of_own;
  }
  EXPECT_EQ(steps_of_own, n);

  // What only TensorFlow 1 has: on all workers an iterator ends where a replica of one of them has no data.
  const v1::Strategy names(strategy.core());
  auto iterator = names.make_input_fn_iterator([&](const v1::InputContext& context) {
    EXPECT_EQ(context.num_input_pipelines, n / 2);
    EXPECT_EQ(context.input_pipeline_id, rank);
    return ls::data::range(rank == 0 ? 9 : 7).batch(1);
  });
  int steps = 0;
  EXPECT_THROW(
      for (;; ++steps) names.experimental_run([](const torch::Tensor& x) { EXPECT_EQ(x.numel(), 1); }, iterator),
      ls::OutOfRange);
  EXPECT_EQ(steps, 3);
  // Every worker is a client of its own: the values that its program sees are those of its replicas.
  iterator.initialize();
  const auto context = names.extended().experimental_run_steps_on_iterator(
      [&](ls::contrib::MultiStepContext& ctx, const ls::PerReplica<torch::Tensor>& rows_of_step) {
        ctx.set_last_step_output("each", rows_of_step);
        names.run([&] { ctx.set_non_tensor_output("id", v1::get_replica_context().replica_id_in_sync_group()); });
      },
      iterator, 2, std::vector<torch::Tensor>(2));
  EXPECT_EQ(context.last_step_outputs().at("each").values().size(), 2U);
  EXPECT_EQ(std::any_cast<std::vector<int>>(context.non_tensor_outputs().at("id")),
            (std::vector{2 * rank, 2 * rank + 1}));
  const auto config = names.update_config_proto({});
  EXPECT_EQ(config.experimental.collective_group_leader, "/job:worker/replica:0/task:0");
  EXPECT_EQ(config.device_filters, std::vector{"/job:worker/task:" + std::to_string(rank)});
}

}  // namespace
