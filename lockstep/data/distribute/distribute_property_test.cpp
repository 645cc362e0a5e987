// Random pipelines over random clusters against a plain reference: no row is lost or repeated, replica k gets the same
// rows for any number of workers, and every position can be saved and resumed.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/worker_shards.h"
#include "tests/support/random_pipelines.h"

namespace lockstep::data {
namespace {

/// The steps of all replicas.
Steps reference_steps(const std::vector<Rows>& batches, const InputPlan& plan) {
  const int replicas = plan.cluster.replicas();
  return dealt(pieces_by_rule(batches, plan.split.rule, plan.global_batch_size, replicas),
               static_cast<std::size_t>(replicas), plan.partial_steps);
}

TEST(DistributeProperty, ByReplicaGivesReplicaKTheSameRowsWhateverTheWorkers) {
  const RowFiles files({7, 0, 12, 3, 20});
  PipelineMaker maker(1, {.files = &files, .hints = true});
  int pushed_down = 0, counted = 0;
  std::set<AutoShardPolicy> policies;
  for (int round = 0; round < 200; ++round) {
    const RandomPipeline pipeline = maker.make();
    const int replicas = 1 + maker.below(6);
    policies.insert(pipeline.policy);
    const InputPlan whole = plan_input(pipeline.dataset, pipeline.policy, Assignment::ByReplica, {1, replicas, 0});
    const Steps expected = reference_steps(batches_of(whole.pipeline()), whole);
    if (whole.steps().is_known()) {
      ++counted;
      EXPECT_EQ(whole.steps(), Cardinality(std::ssize(expected))) << to_string(whole) << pipeline.text;
    }
    for (int workers = 1; workers <= replicas; ++workers) {
      if (replicas % workers != 0) continue;
      for (int worker = 0; worker < workers; ++worker) {
        const ClusterShape cluster{workers, replicas / workers, worker};
        const InputPlan plan = plan_input(pipeline.dataset, pipeline.policy, Assignment::ByReplica, cluster);
        pushed_down += plan.split.batch && workers > 1;
        EXPECT_EQ(plan.steps(), whole.steps());
        DistributedCursor cursor(input_of(plan, maker.below(3)));
        ASSERT_EQ(read_all(cursor), of_worker(expected, cluster)) << to_string(plan) << pipeline.text;
      }
    }
  }
  EXPECT_GT(counted, 30);
  EXPECT_EQ(policies.size(), 5u);
  EXPECT_GT(pushed_down, 20);
}

/// All clusters with this many replicas, for each of their workers.
std::vector<ClusterShape> clusters_of(int replicas) {
  std::vector<ClusterShape> shapes;
  for (int workers = 1; workers <= replicas; ++workers) {
    for (int w = 0; replicas % workers == 0 && w < workers; ++w) shapes.push_back({workers, replicas / workers, w});
  }
  return shapes;
}

TEST(DistributeProperty, EveryPositionCanBeResumedOnAnyNumberOfWorkers) {
  const RowFiles files({4, 0, 9, 3});
  PipelineMaker maker(2, {.files = &files, .hints = true});
  std::set<AutoShardPolicy> policies;
  for (int round = 0; round < 60; ++round) {
    const RandomPipeline pipeline = maker.make();
    policies.insert(pipeline.policy);
    const int replicas = 1 + maker.below(4);
    const std::vector<ClusterShape> shapes = clusters_of(replicas);
    const auto input = [&](const ClusterShape& shape) {
      return input_of(plan_input(pipeline.dataset, pipeline.policy, Assignment::ByReplica, shape), 1);
    };
    DistributedCursor whole(input({1, replicas, 0}));
    const Steps all = read_all(whole);
    for (std::size_t taken = 0; taken <= all.size(); ++taken) {
      const ClusterShape& from = shapes[taken % shapes.size()];
      DistributedCursor before(input(from));
      for (std::size_t i = 0; i < taken; ++i) ASSERT_TRUE(before.next());
      const IteratorState state = IteratorState::parse(before.state().serialize());
      for (const ClusterShape& to : shapes) {
        DistributedCursor after = resume_cursor(input(to), state);
        ASSERT_EQ(read_all(after), of_worker(all, to, taken)) << "after step " << taken << "\n" << pipeline.text;
      }
    }
  }
  EXPECT_EQ(policies.size(), 5u);
}

TEST(DistributeProperty, PositionsAreExactWhereStepsFail) {
  set_log_severity(Severity::Error);  // caches log that they remember nothing
  const RowFiles files({4, 0, 9, 3});
  PipelineMaker maker(4, {.files = &files, .hints = true, .failures = true});
  int failed = 0;
  for (int round = 0; round < 160; ++round) {
    const RandomPipeline pipeline = maker.make();
    const ClusterShape cluster{1, 1 + maker.below(4), 0};
    const Assignment assignment = round % 2 == 0 ? Assignment::ByReplica : Assignment::TensorFlow;
    const auto input = [&] {
      return input_of(plan_input(pipeline.dataset, pipeline.policy, assignment, cluster), maker.below(3));
    };
    DistributedCursor whole(input());
    const Steps all = read_with_failures(whole);
    failed += static_cast<int>(std::ranges::count(all, Step{}));
    DistributedCursor cursor(input());
    for (std::size_t taken = 0; taken <= all.size(); ++taken) {
      ASSERT_EQ(cursor.state().consumed, static_cast<std::int64_t>(taken));
      DistributedCursor resumed = resume_cursor(input(), IteratorState::parse(cursor.state().serialize()));
      ASSERT_EQ(read_with_failures(resumed), Steps(all.begin() + static_cast<std::ptrdiff_t>(taken), all.end()))
          << "after step " << taken << '\n'
          << pipeline.text;
      read_with_failures(cursor, 1);
    }
  }
  EXPECT_GT(failed, 50);
  set_log_severity(Severity::Info);
}

std::map<std::int64_t, int> counted_rows(const std::vector<Rows>& lists) {
  std::map<std::int64_t, int> counts;
  for (const Rows& rows : lists) {
    for (const std::int64_t row : rows) ++counts[row];
  }
  return counts;
}

TEST(DistributeProperty, TensorFlowsAssignmentLosesAndRepeatsNoRow) {
  PipelineMaker maker(3);
  for (int round = 0; round < 150; ++round) {
    const RandomPipeline pipeline = maker.make();
    const int workers = 1 + maker.below(4), replicas = 1 + maker.below(3);
    const auto whole = counted_rows(batches_of(pipeline.dataset));
    std::vector<Rows> of_all;
    bool partial = true, off = pipeline.policy == AutoShardPolicy::Off;
    std::int64_t longest = 0;
    Cardinality promised = Cardinality::unknown();
    for (int worker = 0; worker < workers; ++worker) {
      const InputPlan plan =
          plan_input(pipeline.dataset, pipeline.policy, Assignment::TensorFlow, {workers, replicas, worker});
      partial = plan.partial_steps;
      promised = plan.steps();
      auto source = plan.make_source(kContext);
      std::vector<Rows> mine;
      while (true) {
        const InputStep step = source->next();
        if (step.local_values() == 0) break;
        for (const auto& element : step.elements) {
          if (element) mine.push_back(rows_in(*element));
        }
      }
      const auto full = std::ssize(mine) / replicas;
      longest = std::max<std::int64_t>(longest, partial && std::ssize(mine) % replicas != 0 ? full + 1 : full);
      if (off) {
        EXPECT_EQ(counted_rows(mine), whole) << "worker " << worker << " of " << workers << '\n' << pipeline.text;
      }
      of_all.insert(of_all.end(), mine.begin(), mine.end());

      // Every position can be resumed.
      const std::size_t skip = mine.empty() ? 0
                                            : static_cast<std::size_t>(maker.below(static_cast<int>(mine.size()))) /
                                                  static_cast<std::size_t>(replicas);
      auto resumed = plan.make_source(kContext);
      Position place;
      source->locate(static_cast<std::int64_t>(skip), place);
      resumed->restore(static_cast<std::int64_t>(skip), place);
      std::vector<Rows> rest;
      while (true) {
        const InputStep step = resumed->next();
        if (step.local_values() == 0) break;
        for (const auto& element : step.elements) {
          if (element) rest.push_back(rows_in(*element));
        }
      }
      const auto from =
          mine.begin() + static_cast<std::ptrdiff_t>(std::min(skip * static_cast<std::size_t>(replicas), mine.size()));
      EXPECT_EQ(rest, std::vector<Rows>(from, mine.end())) << pipeline.text;
    }
    if (!off) {
      EXPECT_EQ(counted_rows(of_all), whole) << workers << 'x' << replicas << '\n' << pipeline.text;
    }
    if (promised.is_known()) {
      EXPECT_EQ(promised, Cardinality(longest)) << workers << 'x' << replicas << '\n' << pipeline.text;
    }
    EXPECT_TRUE(partial || workers == 1);
  }
}

TEST(OwnRows, OnlyRowsOfOwnReplicasAreComputed) {
  for (const bool drop : {false, true}) {
    for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Off}) {
      std::int64_t all = 0;
      for (int worker = 0; worker < 4; ++worker) {
        const auto computed = std::make_shared<std::atomic<std::int64_t>>(0);
        const StagePtr rows = make_map(
            make_shuffle(make_range(0, 70), 20), [computed](Element&) { ++*computed; }, ElementSpec::unknown(1),
            MapOptions{.spec = [](const ElementSpec& spec) { return spec; }});
        const StagePtr dataset = make_batch(rows, 16, BatchOptions{.drop_remainder = drop});
        const ClusterShape cluster{4, 1, worker};
        const InputPlan plan = plan_input(dataset, policy, Assignment::ByReplica, cluster);
        DistributedCursor cursor(input_of(plan, 0));
        std::int64_t own = 0;
        for (const Step& step : read_all(cursor)) {
          for (const Rows& mine : step) own += std::ssize(mine);
        }
        EXPECT_EQ(*computed, own) << worker;
        all += *computed;
      }
      EXPECT_EQ(all, drop ? 64 : 70);
    }
  }
}

TEST(OwnRows, ABatchMayBeDeclaredFarLargerThanTheData) {
  const StagePtr batches = make_batch(make_range(0, 4), std::int64_t{1} << 40);
  for (const int worker : {0, 1}) {
    DistributedCursor cursor(
        input_of(plan_input(batches, AutoShardPolicy::Off, Assignment::ByReplica, {2, 1, worker}), 0));
    EXPECT_EQ(read_all(cursor), (Steps{{worker == 0 ? Rows{0, 1} : Rows{2, 3}}}));
  }
}

TEST(OwnRows, ACacheIsFilledInTheFirstPass) {
  for (const bool drop : {false, true}) {
    for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Off}) {
      for (const std::int64_t rows : {64, 70}) {
        const auto computed = std::make_shared<std::atomic<std::int64_t>>(0);
        const StagePtr cached = make_cache(make_map(
            make_range(0, rows), [computed](Element&) { ++*computed; }, ElementSpec::unknown(1),
            MapOptions{.spec = [](const ElementSpec& spec) { return spec; }}));
        const StagePtr dataset = make_batch(cached, 16, BatchOptions{.drop_remainder = drop});
        const auto input = input_of(plan_input(dataset, policy, Assignment::ByReplica, {2, 1, 1}), 0);
        DistributedCursor first(input);
        const Steps steps = read_all(first);
        DistributedCursor second(input);
        EXPECT_EQ(read_all(second), steps);
        EXPECT_EQ(*computed, rows) << (drop ? "without" : "with") << " a short last batch";
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::data
