#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/multi_worker/together.h"
#include "tests/support/replicas.h"

// Collectives, values and variables.
namespace together {
namespace {

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

TEST_F(Together, ValuesOfAllComeInReplicaOrder) {
  const auto values = strategy.run([] {
    const int id = ls::get_replica_context().replica_id_in_sync_group();
    return std::pair{id * 0.5, torch::full({id}, id)};  // a different shape on each
  });
  const auto all = ls::values_of_all(strategy, values);
  ASSERT_EQ(static_cast<int>(all.size()), strategy.num_replicas_in_sync());
  for (int k = 0; k < strategy.num_replicas_in_sync(); ++k) {
    EXPECT_EQ(all[static_cast<std::size_t>(k)].first, k * 0.5);
    EXPECT_TRUE(all[static_cast<std::size_t>(k)].second.equal(torch::full({k}, k)));
  }
}

TEST_F(Together, TheProgramsSumsTakeTheRingIfAskedFor) {
  const std::string first = ls::tests_are_on_gpu() ? "copied through host memory, up to" : "AUTO: up to";
  EXPECT_NE(strategy.describe().find(first), std::string::npos) << strategy.describe();
  const ls::PerReplica<torch::Tensor> ones({torch::ones({3}), torch::ones({3})});
  EXPECT_THROW(strategy.extended().reduce_to(ls::ReduceOp::Sum, ones, strategy.devices()[0],
                                             {.implementation = ls::Implementation::Ring}),
               ls::Error);  // which this strategy was not made for

  const ls::MultiWorkerOptions by_ring{.devices = ls::test_devices(2),
                                       .communication = {.implementation = ls::Implementation::Ring},
                                       .intra_op_threads = 1};
  if (has_own_cpp_runtime()) {
    EXPECT_THROW(ls::MultiWorkerMirroredStrategy{by_ring}, ls::Error);
    return;
  }
  ls::MultiWorkerMirroredStrategy ring(by_ring);
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
  strategy.barrier();  // the job continues
}

/// Checks that it throws on every worker, for the same reason, and that the job continues.
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
  const auto error_text = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const ls::Error& error) {
      return error.what();
    }
    return "";
  };
  const auto send = [&](auto number) { strategy.broadcast(number); };  // one place in the source, as workers compare it
  const auto fraction = error_text([&] { rank == 0 ? send(2.5) : send(1); });
  if (rank > 0) {
    EXPECT_NE(fraction.find("the chief's number 2.5 does not fit into int"), fraction.npos) << fraction;
    EXPECT_EQ(fraction.find("reduce"), fraction.npos) << fraction;
    EXPECT_EQ(fraction.find("mean"), fraction.npos) << fraction;
  }
  const auto large = error_text([&] { strategy.broadcast(~0ULL); });
  EXPECT_NE(large.find("is too large to broadcast"), large.npos) << large;
  const auto text = error_text([&] { strategy.broadcast(std::string("name")); });
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

TEST_F(Together, AMeanOfEqualFactorsIsNotGuessed) {
  auto v = strategy.make_variable(torch::ones({2}), {.aggregation = ls::Aggregation::Mean});
  strategy.run([&] {
    expect_refused({"scatter_mul with Aggregation::Mean of the same rows", "OnlyFirstReplica"}, [&] {
      v.scatter_mul({torch::full({1}, 4.0), torch::tensor({0}), {2}});
    });
  });
  EXPECT_TRUE(torch::equal(v.read(), torch::ones({2})));
}

TEST_F(Together, VariablesBeginWithTheChiefsValue) {
  auto v = strategy.make_variable(torch::full({2}, rank + 1.0), {.aggregation = ls::Aggregation::Mean});
  EXPECT_GT(Noted::count("initial value of variable 'Variable'"), 0);
  EXPECT_EQ(v.read()[0].item<double>(), 1.0);
  strategy.run([&] { v.assign_add(torch::full({2}, 1.0 * ls::get_replica_context().replica_id_in_sync_group())); });
  EXPECT_EQ(v.read()[0].item<double>(), 1 + (strategy.num_replicas_in_sync() - 1) / 2.0);
}

TEST_F(Together, VariablesOfDifferentShapesAreRefusedByAll) {
  // In a job with its own strategy: the failure ends it.
  try {
    strategy.make_variable(torch::zeros({rank == 0 ? 3 : 4}), {.name = "w"});
    FAIL() << "made of different shapes";
  } catch (const ls::Error& e) {
    for (const char* part : {"variable 'w', float32 [3]", "variable 'w', float32 [4]"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST_F(Together, OneWorkerAloneMayCopyAVariable) {
  const auto first = strategy.make_variable(torch::zeros({2}), {.name = "first"});
  if (rank == 0) {
    EXPECT_EQ(first.clone("best").shape()[0], 2);
  }
  auto second = strategy.make_variable(torch::zeros({}), {.name = "second", .aggregation = ls::Aggregation::Sum});
  strategy.run([&] { second.assign_add(torch::ones({})); });
  EXPECT_EQ(second.read().item<int>(), 2 * workers);
}

TEST(StrategyOfWorkers, MayGoBeforeWhatBelongsToIt) {
  auto strategy = std::make_unique<ls::MultiWorkerMirroredStrategy>(
      ls::MultiWorkerOptions{.devices = ls::test_devices(2), .intra_op_threads = 1, .seed = 3});
  const auto off = ls::InputOptions{.assignment = ls::Assignment::TensorFlow};
  const auto dataset = strategy->distribute(ls::data::range(64).batch(4), off);
  auto begun = dataset.iterator();
  begun.get_next();
  auto fresh = dataset.iterator();
  strategy->barrier();
  strategy.reset();
  const auto refused = [](const char* what, const auto& call) {
    try {
      call();
      ADD_FAILURE() << what << " did not notice";
    } catch (const ls::Error& e) {
      EXPECT_EQ(e.number(), ls::errors::kMixedStrategies) << what << ": " << e.what();
    }
  };
  refused("an iterator", [&] { begun.next(); });
  refused("a fresh iterator", [&] { fresh.next(); });
  refused("a dataset", [&] { dataset.iterator().next(); });
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

}  // namespace
}  // namespace together
