#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/data/distribute/worker_shards.h"
#include "lockstep/data/files/files.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/resume.h"
#include "tests/support/rows_of_replicas.h"
#include "tests/support/temporary_folder.h"

// The elements of each replica of a distributed dataset, and their timing.
namespace lockstep::data {
namespace {

TEST(Distribute, WholeStepsEndWhereOneReplicaHasNoData) {
  const auto input = distribute_made(strategy_of(3), {range(11).stage()}, {});
  const auto steps_in = [](const DistributedInputPtr& each) {
    DistributedCursor cursor(each);
    int steps = 0;
    while (cursor.next()) ++steps;
    EXPECT_FALSE(cursor.next());
    return steps;
  };
  EXPECT_EQ(steps_in(only_whole_steps(input)), 3);
  const auto batches = distribute_made(strategy_of(3), {range(11).batch(2).stage()}, {});
  EXPECT_EQ(steps_in(batches), 2);
  EXPECT_EQ(steps_in(only_whole_steps(batches)), 2);  // 2, 2, 2 and 2, 2, 1
  const auto fours = distribute_made(strategy_of(3), {range(14).batch(4).stage()}, {});
  EXPECT_EQ(steps_in(fours), 2);
  EXPECT_EQ(steps_in(only_whole_steps(fours)), 1);
}

TEST(Distribute, GivesEachReplicaAPieceOfEveryBatch) {
  const auto batches = strategy_of(4).distribute(range(26).batch(10));
  const std::vector<std::vector<Rows>> expected = {{{0, 1, 2}, {3, 4, 5}, {6, 7}, {8, 9}},
                                                   {{10, 11, 12}, {13, 14, 15}, {16, 17}, {18, 19}},
                                                   {{20, 21}, {22, 23}, {24}, {25}}};
  EXPECT_EQ(steps_of(batches), expected);
  EXPECT_EQ(steps_of(batches), expected) << "a second loop starts from the beginning";
  EXPECT_TRUE(batches.handles_partial_steps());
  EXPECT_EQ(batches.cardinality(), Cardinality(3));
}

TEST(Distribute, CutsEachBatchByItselfWhateverTheSourceAndThePolicy) {
  const TemporaryFolder folder;
  const std::string file = folder.file("lines", "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n");
  const auto number_in = [](const std::string& line) { return at::full({}, std::stoll(line), at::kLong); };
  const auto lines = text_line_dataset(from_tensor_slices(std::vector{file})).map(number_in);
  for (const auto policy : {AutoShardPolicy::Auto, AutoShardPolicy::File, AutoShardPolicy::Data, AutoShardPolicy::Off,
                            AutoShardPolicy::Hint}) {
    for (const auto& source : {range(12), from_tensor_slices(at::arange(12)), lines}) {
      const auto batches = source.batch(9).repeat(2).with_options({policy});
      const std::vector<Rows> nine = {{0, 1, 2}, {3, 4}, {5, 6}, {7, 8}}, three = {{9}, {10}, {11}, {}};
      EXPECT_EQ(steps_of(strategy_of(4).distribute(batches)),
                (std::vector<std::vector<Rows>>{nine, three, nine, three}))
          << to_string(policy);
    }
  }
}

TEST(Distribute, KnowsItsNumberOfStepsBehindTakeSkipAndShard) {
  const auto batches = range(26).batch(4);  // the last one has 2 rows
  const auto whole = range(26).batch(4, {.drop_remainder = true});
  const std::pair<const char*, Dataset<at::Tensor>> cases[] = {
      {"take", batches.take(3)},
      {"take all", batches.take(-1)},
      {"take too many", batches.take(9)},
      {"skip", batches.skip(5)},
      {"skip too many", batches.skip(9)},
      {"take of skip", batches.skip(2).take(4)},
      {"shard without the last", batches.shard(4, 1)},
      {"shard with the last", batches.shard(4, 2)},
      {"shard of none", batches.shard(9, 8)},
      {"take of prefetch", batches.prefetch(2).take(7)},
      {"take of an endless one", range(26).repeat(-1).batch(4).take(3)},
      {"take of whole ones", whole.take(5)},
      {"shard of whole ones", whole.shard(3, 1)}};
  for (const int replicas : {1, 2, 3, 5}) {
    for (const auto& [name, dataset] : cases) {
      const auto distributed = strategy_of(replicas).distribute(dataset);
      EXPECT_EQ(distributed.cardinality(), Cardinality(std::ssize(steps_of(distributed))))
          << name << ", " << replicas << " replicas";
    }
  }
}

TEST(Distribute, YieldsStructuresPerReplica) {
  auto& strategy = strategy_of(2);
  const auto images = at::arange(12).view({6, 2});
  const auto labels = at::arange(6) * 10;
  const auto batches = strategy.distribute(from_tensor_slices(std::pair{images, labels}).batch(4));
  std::int64_t sum = 0;
  for (const auto& batch : batches) {
    auto sums = strategy.run([](const std::pair<at::Tensor, at::Tensor>& mine) { return mine.second.sum(); }, batch);
    sum += strategy.reduce(ReduceOp::Sum, sums).item<std::int64_t>();
  }
  EXPECT_EQ(sum, 150);
}

TEST(Distribute, WarnsOnceOfRowsThatWereNeverBatched) {
  const auto rows_of_four = from_tensor_slices(at::zeros({6, 4}));
  const auto same = [](at::Tensor x) { return x; };
  const auto warnings = [](const auto& dataset, int replicas = 2) {
    const LoggedLines log;
    const auto batches = strategy_of(replicas).distribute(dataset);
    for (int pass = 0; pass < 2; ++pass) steps_of(batches);
    EXPECT_EQ(log.count("never batched"), log.count(".batch(N) before distribute"));
    return log.count("never batched");
  };
  EXPECT_EQ(warnings(rows_of_four), 1);
  EXPECT_EQ(warnings(rows_of_four.shuffle(6).map(same).cache().repeat(2).prefetch(1)), 1);
  EXPECT_EQ(warnings(rows_of_four.batch(2).unbatch()), 1);
  EXPECT_EQ(warnings(rows_of_four.concatenate(rows_of_four)), 1);
  const auto rows_of = [](const at::Tensor& x) { return from_tensor_slices(x); };
  const auto batches_of = [](const at::Tensor& x) { return from_tensor_slices(x).batch(2); };
  EXPECT_EQ(warnings(rows_of_four.batch(3).flat_map(batches_of)), 0) << "no function is called to plan";
  EXPECT_EQ(warnings(rows_of_four.batch(3).interleave(rows_of).batch(2)), 0);
  EXPECT_EQ(warnings(rows_of_four, 1), 0) << "one replica gets whole elements";
  const auto by_tensorflow = [](const auto& dataset) {
    return plan_input(dataset.stage(), AutoShardPolicy::Auto, Assignment::TensorFlow, {1, 2, 0}).has_single_rows;
  };
  EXPECT_TRUE(by_tensorflow(rows_of_four.batch(3).flat_map(rows_of)));
  EXPECT_TRUE(by_tensorflow(rows_of_four.batch(3).interleave(rows_of).map(same)));
  EXPECT_FALSE(by_tensorflow(rows_of_four.batch(3).flat_map(batches_of)));

  EXPECT_EQ(warnings(rows_of_four.batch(3)), 0);
  EXPECT_EQ(warnings(rows_of_four.map(same).batch(3, {.parallel_calls = 2}).map(same).ignore_errors().repeat(2)), 0);
  EXPECT_EQ(warnings(rows_of_four.padded_batch(3)), 0);
  EXPECT_EQ(warnings(rows_of_four.batch(3).rebatch(2)), 0);
  // The user's own batches.
  EXPECT_EQ(warnings(from_tensors(at::zeros({6, 4}))), 0);
  EXPECT_EQ(warnings(range(3).map([](const at::Tensor& i) { return at::full({6, 4}, i.item<double>()); })), 0);
  EXPECT_EQ(warnings(from_tensor_slices(std::vector<std::string>{"a", "b"}).map([](const std::string&) {
              return at::zeros({6, 4});
            })),
            0);
  EXPECT_EQ(warnings(from_generator([] {
              return [i = 0]() mutable { return i++ < 2 ? std::optional(at::zeros({6, 4})) : std::nullopt; };
            })),
            0);
  EXPECT_EQ(warnings(range(2).flat_map([](const at::Tensor&) { return from_tensors(at::zeros({6, 4})); })), 0);
}

TEST(Distribute, NamesTheShapeOfRowsThatWereNeverBatched) {
  const LoggedLines log;
  strategy_of(2).distribute(from_tensor_slices(std::pair{at::zeros({6, 4}), at::zeros({6, 4})}));
  EXPECT_EQ(log.count("each element, (float32[4], float32[4]), is cut along its first dimension"), 1);
  const auto doubled = [](const at::Tensor& x) { return x.repeat({2}); };
  steps_of(strategy_of(2).distribute(from_tensor_slices(at::zeros({6, 4})).map(doubled)));
  EXPECT_EQ(log.count("each element, float32[8], is cut along its first dimension"), 1) << "of what map returns";
}

TEST(Distribute, GivesPartsOfSparseBatches) {
  const at::Tensor dense = at::arange(15).view({5, 3});
  const auto batches = from_tensor_slices(dense.to_sparse()).batch(3);
  for (const auto policy : {AutoShardPolicy::Auto, AutoShardPolicy::Off}) {
    std::vector<std::vector<Rows>> steps;
    for (const auto& step : strategy_of(3).distribute(batches.with_options({policy}))) {
      EXPECT_TRUE(step[0].is_sparse() && step[2].is_sparse()) << "also without rows";
      steps.push_back(rows(step.map([](const at::Tensor& mine) { return mine.to_dense(); })));
    }
    EXPECT_EQ(steps,
              (std::vector<std::vector<Rows>>{{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}}, {{9, 10, 11}, {12, 13, 14}, {}}}));
  }
}

TEST(Distribute, ReadsAheadAndCanBeDroppedInTheMiddle) {
  for (const int buffer : {0, 1, 3}) {
    const auto batches = strategy_of(3).distribute(range(100).batch(7), {.per_replica_buffer_size = buffer});
    for (int taken = 0; taken < 4; ++taken) {
      auto steps = batches.iterator();
      for (int i = 0; i < taken; ++i) ASSERT_TRUE(steps.next());
    }
  }
}

// A second team of OpenMP threads would compete with the replicas' threads.
TEST(Distribute, TheThreadThatReadsAheadComputesWithOneThread) {
  MirroredStrategy& strategy = strategy_of(1);
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const auto threads = [](const at::Tensor&) { return std::int64_t{at::get_num_threads()}; };
  const auto dataset = range(4).map(threads).batch(2);
  EXPECT_EQ(steps_of(strategy.distribute(dataset, {.per_replica_buffer_size = 1})),
            (std::vector<std::vector<Rows>>{{{1, 1}}, {{1, 1}}}));
  EXPECT_EQ(steps_of(strategy.distribute(dataset, {.per_replica_buffer_size = 0})),
            (std::vector<std::vector<Rows>>{{{3, 3}}, {{3, 3}}}));
  at::set_num_threads(before);
}

TEST(Distribute, WithParallelStagesCanBeDroppedInTheMiddle) {
  const auto slow = [](at::Tensor x) {
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    return x;
  };
  for (const bool ordered : {true, false}) {
    const auto dataset =
        range(400).shuffle(50).map(slow, {.parallel_calls = 2, .ordered = ordered}).batch(8).prefetch(2);
    const auto batches = strategy_of(2).distribute(dataset, {.per_replica_buffer_size = 2});
    for (int taken = 0; taken < 6; ++taken) {
      auto steps = batches.iterator();
      for (int i = 0; i < taken; ++i) ASSERT_TRUE(steps.next());
    }
    if (!ordered) {
      EXPECT_THROW(batches.iterator().state(), FailedPrecondition) << "an unordered map has no exact position";
    }
  }
}

TEST(Distribute, ReshufflesEachPassAndResumesIt) {
  const auto batches = strategy_of(2).distribute(range(40).shuffle(40).batch(8));
  const auto first = steps_of(batches);
  EXPECT_NE(first, steps_of(batches));
  auto steps = batches.iterator();
  steps.next();
  auto resumed = resume(batches, steps.state());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(rows(steps.get_next()), rows(resumed.get_next()));
}

TEST(Distribute, EndsWithOutOfRangeOrNothing) {
  auto steps = strategy_of(2).distribute(range(5).batch(4)).iterator();
  EXPECT_EQ(rows(steps.get_next()), (std::vector<Rows>{{0, 1}, {2, 3}}));
  EXPECT_EQ(rows(*steps.get_next_as_optional()), (std::vector<Rows>{{4}, {}}));
  EXPECT_FALSE(steps.get_next_as_optional());
  EXPECT_FALSE(steps.next());
  EXPECT_THROW(steps.get_next(), OutOfRange);
  EXPECT_THROW(steps.get_next(), OutOfRange);
}

TEST(Distribute, RefusesScalarsAtOnce) {
  EXPECT_THROW(strategy_of(2).distribute(range(5)), InvalidArgument);
  EXPECT_NO_THROW(strategy_of(1).distribute(range(5)));
}

TEST(Distribute, BelongsOutsideOfReplicas) {
  auto& strategy = strategy_of(2);
  const auto dataset = range(8).batch(4);
  EXPECT_THROW(strategy.run([&] { strategy.distribute(dataset); }), Error);
  auto steps = strategy.distribute(dataset).iterator();
  EXPECT_THROW(strategy.run([&] { steps.next(); }), InvalidArgument);
}

TEST(DistributeFromFunction, DealsPerReplicaBatchesInTurn) {
  std::vector<InputContext> seen;
  const auto batches = strategy_of(2).distribute_from_function([&](const InputContext& context) {
    seen.push_back(context);
    return range(10).batch(context.get_per_replica_batch_size(6));
  });
  EXPECT_EQ(seen, (std::vector<InputContext>{{1, 0, 2}}));
  EXPECT_EQ(steps_of(batches), (std::vector<std::vector<Rows>>{{{0, 1, 2}, {3, 4, 5}}, {{6, 7, 8}, {9}}}));
}

TEST(DistributeFromFunction, MakesAPipelineForEachReplicaWhenAsked) {
  std::vector<InputContext> seen;
  const auto batches = strategy_of(3).distribute_from_function(
      [&](const InputContext& context) {
        seen.push_back(context);
        return range(4).map([k = context.input_pipeline_id](at::Tensor x) { return x + 100 * k; }).batch(3);
      },
      {.replication_mode = ReplicationMode::PerReplica});
  EXPECT_EQ(seen, (std::vector<InputContext>{{3, 0, 3}, {3, 1, 3}, {3, 2, 3}}));
  EXPECT_EQ(steps_of(batches),
            (std::vector<std::vector<Rows>>{{{0, 1, 2}, {100, 101, 102}, {200, 201, 202}}, {{3}, {103}, {203}}}));
}

TEST(Distribute, TakesAMeter) {
  const auto meter = std::make_shared<StageMeter>();
  const auto batches = strategy_of(2).distribute(range(40).map([](at::Tensor x) { return x; }).batch(8));
  for (auto steps = batches.iterator({.meter = meter}); steps.next();) {
  }
  const StageReport report = meter->report();
  ASSERT_EQ(report.stages.size(), 4u) << to_string(report);
  EXPECT_EQ(report.stages.front().name, "distribute #1");
  EXPECT_EQ(report.stages.front().rows, 40);
}

TEST(Position, OfADistributedIteratorCanBeResumedAtEveryStep) {
  auto& strategy = strategy_of(3);
  const auto batches = strategy.distribute(range(41).batch(7), {.per_replica_buffer_size = 2});
  const auto all = steps_of(batches);
  for (std::size_t taken = 0; taken <= all.size(); ++taken) {
    auto steps = batches.iterator();
    for (std::size_t i = 0; i < taken; ++i) steps.next();
    const auto state = IteratorState::parse(steps.state().serialize());
    auto resumed = resume(batches, state);
    for (std::size_t i = taken; i < all.size(); ++i) EXPECT_EQ(rows(resumed.get_next()), all[i]);
    EXPECT_FALSE(resumed.next());
  }
  auto steps = batches.iterator();
  EXPECT_THROW(resume(strategy.distribute(range(41).batch(8)), steps.state()), InvalidArgument);
}

TEST(NumpyDataset, ChecksFirstDimensionsAndStacksVectors) {
  auto& strategy = strategy_of(2);
  const auto dataset = strategy.make_numpy_dataset(std::pair{at::arange(6), at::arange(12).view({6, 2})});
  EXPECT_EQ(dataset.cardinality(), Cardinality(6));
  EXPECT_THROW(strategy.make_numpy_dataset(std::pair{at::arange(6), at::arange(5)}), InvalidArgument);
  const auto stacked = strategy.make_numpy_dataset(std::vector{at::arange(2), at::arange(2), at::arange(2)});
  EXPECT_EQ(stacked.cardinality(), Cardinality(3));
}

TEST(NumpyDataset, ReadsNpyFiles) {
  const auto folder = std::filesystem::temp_directory_path() / str("lockstep_numpy_", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "x.npy").string();
  write_npy(path, at::arange(6).view({3, 2}));
  auto& strategy = strategy_of(2);
  EXPECT_EQ(rows(strategy.make_numpy_dataset(path).to_vector().at(2)), (Rows{4, 5}));
  const auto pairs = strategy.make_numpy_dataset(std::pair{path, at::arange(3)});
  EXPECT_EQ(rows(pairs.to_vector().at(1).first), (Rows{2, 3}));
  EXPECT_THROW(strategy.make_numpy_dataset(std::pair{path, at::arange(4)}), InvalidArgument);
  EXPECT_THROW(strategy.make_numpy_dataset((folder / "none.npy").string()), Error);
  std::filesystem::remove_all(folder);
}

TEST(NumpyDataset, IsDistributedLikeAnyOther) {
  auto& strategy = strategy_of(2);
  const auto batches = strategy.distribute(strategy.make_numpy_dataset(at::arange(7)).batch(4));
  EXPECT_EQ(steps_of(batches), (std::vector<std::vector<Rows>>{{{0, 1}, {2, 3}}, {{4, 5}, {6}}}));
}

TEST(Distribute, AnEmptyDatasetIsRefused) {
  using Numbers = Dataset<at::Tensor>;
  auto& strategy = strategy_of(2);
  EXPECT_THROW(strategy.distribute(Numbers()), FailedPrecondition);
  EXPECT_THROW(strategy.distribute_from_function([](const InputContext&) { return Numbers(); }), FailedPrecondition);
}

TEST(Distribute, LooksIntoFunctionsThatThrowAnything) {
  const auto odd = range(2).flat_map([](const at::Tensor&) -> Dataset<at::Tensor> { throw 42; });
  for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
    const auto batches = strategy_of(2).distribute(odd.batch(2), {.assignment = assignment});
    EXPECT_THROW(steps_of(batches), int);
  }
}

TEST(Distribute, OptionsOfAnyInputHold) {
  const auto plain = range(8).batch(4);
  const auto off = plain.with_options({AutoShardPolicy::Off});
  const auto data = plain.with_options({AutoShardPolicy::Data});
  const auto policy = [](const auto& dataset) { return policy_of(*dataset.stage()); };
  EXPECT_EQ(policy(zip(off, plain)), AutoShardPolicy::Off);
  EXPECT_EQ(policy(zip(plain, off)), AutoShardPolicy::Off);
  EXPECT_EQ(policy(plain.concatenate(off).prefetch(1)), AutoShardPolicy::Off);
  EXPECT_EQ(policy(zip(off, data)), AutoShardPolicy::Data) << "the last input's";
  EXPECT_EQ(policy(zip(plain, data).with_options({AutoShardPolicy::Off})), AutoShardPolicy::Off) << "the nearest";
  EXPECT_EQ(policy(zip(plain, plain)), AutoShardPolicy::Auto);
}

TEST(Distribute, ChainsTooLongForAPlanAreRefused) {
  auto chain = range(1);
  for (int i = 0; i < 1000; ++i) chain = chain.concatenate(range(1));
  EXPECT_EQ(steps_of(strategy_of(1).distribute(chain.batch(1001))).size(), 1u);
  for (int i = 0; i < 20'000; ++i) chain = chain.concatenate(range(1));
  try {
    strategy_of(1).distribute(chain.batch(4));
    ADD_FAILURE() << "distributed";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.number(), errors::kSharding) << error.what();
    EXPECT_EQ(error.text().what,
              "a dataset to distribute must have at most 4000 stages on top of each other, got 21002");
    EXPECT_NE(error.text().help.find("interleave"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::data
