// Random pipelines over random clusters against a plain reference: no row is lost or repeated, replica k gets the same
// rows whatever the workers, and every position can be saved and resumed.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/add.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/describe.h"
#include "lockstep/data/distribute/distribute_test_support.h"
#include "lockstep/data/distribute/distributed_input.h"
#include "lockstep/data/files/reader_stage.h"
#include "lockstep/data/stages/batch.h"
#include "lockstep/data/stages/cache.h"
#include "lockstep/data/stages/combine.h"
#include "lockstep/data/stages/filter.h"
#include "lockstep/data/stages/map.h"
#include "lockstep/data/stages/nested.h"
#include "lockstep/data/stages/order.h"
#include "lockstep/data/stages/padded_batch.h"
#include "lockstep/data/stages/prefetch.h"
#include "lockstep/data/stages/sources.h"

namespace lockstep::data {
namespace {

struct RandomPipeline {
  StagePtr dataset;
  AutoShardPolicy policy;
  std::string text;
};

class PipelineMaker {
 public:
  explicit PipelineMaker(unsigned seed) : random_(seed) {}

  RandomPipeline make() {
    StagePtr stage = source(chance(8) ? 0 : below(60));
    for (int stages = below(4); stages > 0; --stages) stage = row_stage(stage);
    stage = batched(stage, 1 + below(12), chance(4));
    for (int stages = below(3); stages > 0; --stages) stage = batch_stage(stage);
    const AutoShardPolicy policies[] = {AutoShardPolicy::Auto, AutoShardPolicy::Data, AutoShardPolicy::Off};
    const AutoShardPolicy policy = policies[below(3)];
    stage = std::make_shared<OptionsStage>(stage, DatasetOptions{policy});
    return {stage, policy, str(lockstep::to_string(policy), "\n", print_tree(*stage))};
  }
  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }
  bool chance(int of) { return below(of) == 0; }

 private:
  StagePtr source(std::int64_t rows) {
    if (!chance(4)) return make_range(0, rows);
    return std::make_shared<GeneratorStage>(
        [rows]() -> Generator {
          return [rows, next = std::int64_t{0}](Element& element) mutable {
            if (next == rows) return false;
            element = Element::of(at::scalar_tensor(next++, at::kLong));
            return true;
          };
        },
        make_range(0, 1)->element_spec(), GeneratorOptions{.replayable = true});
  }
  static StagePtr batched(const StagePtr& input, std::int64_t size, bool drop_remainder) {
    if (size % 5 == 0)
      return std::make_shared<PaddedBatchStage>(input, size, PaddedBatchOptions{.drop_remainder = drop_remainder});
    return std::make_shared<BatchStage>(input, size, BatchOptions{.drop_remainder = drop_remainder});
  }
  static MapOptions map_options(int parallel_calls) {
    return {.parallel_calls = parallel_calls, .spec = [](const ElementSpec& spec) { return spec; }};
  }
  StagePtr row_stage(const StagePtr& input) {
    switch (below(14)) {
      case 0: return std::make_shared<ShuffleStage>(input, 1 + below(20), ShuffleOptions{.seed = random_()});
      case 1: return std::make_shared<ShuffleStage>(input, 1 + below(20));
      case 2:
      case 3:
        return std::make_shared<MapStage>(
            input, [](Element& element) { element = Element::of(element.tensor(0).add(1000)); },
            ElementSpec::unknown(1), map_options(below(3)));
      case 4:
        return std::make_shared<MapStage>(  // with random numbers
            input,
            [](Element& element, std::uint64_t key) {
              element = Element::of(element.tensor(0).add(static_cast<std::int64_t>(key % 1000) * 10'000));
            },
            ElementSpec::unknown(1), map_options(below(3)));
      case 5:
        return std::make_shared<FilterStage>(
            input, [](const Element& element) { return element.tensor(0).item().toLong() % 3 != 0; });
      case 6: return std::make_shared<RepeatStage>(input, 1 + below(3));
      case 7: return std::make_shared<TakeStage>(input, below(40));
      case 8: return std::make_shared<ShardStage>(input, 2, below(2));
      case 9: return std::make_shared<PrefetchStage>(input, 1 + below(3));
      case 10: return std::make_shared<CacheStage>(input);
      case 11: return std::make_shared<ConcatenateStage>(input, make_range(500, 500 + below(9)));
      case 12:
        return std::make_shared<InterleaveStage>(
            input,
            [](Element&& element) {
              const std::int64_t row = element.tensor(0).item().toLong();
              return make_range(row * 10, row * 10 + row % 3);
            },
            make_range(0, 1)->element_spec(),
            chance(2) ? std::nullopt : std::optional(InterleaveOptions{.cycle_length = 3, .parallel_calls = below(3)}));
      default: return std::make_shared<SkipStage>(input, below(7));
    }
  }
  StagePtr batch_stage(const StagePtr& input) {
    switch (below(7)) {
      case 0: return std::make_shared<RepeatStage>(input, 1 + below(3));
      case 1: return std::make_shared<ShuffleStage>(input, 1 + below(4));
      case 2: return std::make_shared<TakeStage>(input, below(9));
      case 3: return std::make_shared<SkipStage>(input, below(3));
      case 4: return std::make_shared<PrefetchStage>(input, 2);
      case 5: return std::make_shared<CacheStage>(input);
      default:
        return std::make_shared<MapStage>(  // hides the size of the batches
            input, [](Element&) {}, ElementSpec::unknown(1), map_options(below(3)));
    }
  }

  std::mt19937 random_;
};

/// What all replicas get.
Steps reference_steps(const std::vector<Rows>& batches, const InputPlan& plan) {
  const int replicas = plan.cluster.replicas();
  return dealt(pieces_by_rule(batches, plan.split.rule, plan.global_batch_size, replicas),
               static_cast<std::size_t>(replicas), plan.partial_steps);
}

TEST(DistributeProperty, ByReplicaGivesReplicaKTheSameRowsWhateverTheWorkers) {
  PipelineMaker maker(1);
  int balanced = 0, pushed_down = 0, counted = 0;
  for (int round = 0; round < 150; ++round) {
    const RandomPipeline pipeline = maker.make();
    const int replicas = 1 + maker.below(6);
    const auto batches = batches_of(pipeline.dataset);
    const InputPlan whole = plan_input(pipeline.dataset, pipeline.policy, Assignment::ByReplica, {1, replicas, 0});
    const Steps expected = reference_steps(batches, whole);
    if (whole.steps().is_known()) {
      ++counted;
      EXPECT_EQ(whole.steps(), Cardinality(std::ssize(expected))) << to_string(whole) << pipeline.text;
    }
    for (int workers = 1; workers <= replicas; ++workers) {
      if (replicas % workers != 0) continue;
      for (int worker = 0; worker < workers; ++worker) {
        const ClusterShape cluster{workers, replicas / workers, worker};
        const InputPlan plan = plan_input(pipeline.dataset, pipeline.policy, Assignment::ByReplica, cluster);
        balanced += plan.split.rule == SplitRule::BalancedStream;
        pushed_down += plan.split.batch && workers > 1;
        EXPECT_EQ(plan.steps(), whole.steps());
        DistributedCursor cursor(input_of(plan, maker.below(3)));
        ASSERT_EQ(read_all(cursor), of_worker(expected, cluster)) << to_string(plan) << pipeline.text;
      }
    }
  }
  EXPECT_GT(balanced, 20);
  EXPECT_GT(counted, 50);
  EXPECT_GT(pushed_down, 20);
}

TEST(DistributeProperty, PositionsCanBeResumedOnAnyNumberOfWorkers) {
  PipelineMaker maker(2);
  for (int round = 0; round < 40; ++round) {
    const RandomPipeline pipeline = maker.make();
    const int replicas = 1 + maker.below(4);
    std::vector<ClusterShape> shapes;
    for (int workers = 1; workers <= replicas; ++workers) {
      for (int w = 0; replicas % workers == 0 && w < workers; ++w) shapes.push_back({workers, replicas / workers, w});
    }
    const auto input = [&](const ClusterShape& shape) {
      return input_of(plan_input(pipeline.dataset, pipeline.policy, Assignment::ByReplica, shape), 1);
    };
    DistributedCursor whole(input({1, replicas, 0}));
    const Steps all = read_all(whole);
    for (std::size_t taken = 0; taken <= all.size(); ++taken) {
      const ClusterShape& from = shapes[taken % shapes.size()];
      DistributedCursor before(input(from));
      for (std::size_t i = 0; i < taken; ++i) ASSERT_TRUE(before.next());
      const IteratorState state = IteratorState::parse(before.save().serialize());
      for (const ClusterShape& to : shapes) {
        DistributedCursor after(input(to), state);
        ASSERT_EQ(read_all(after), of_worker(all, to, taken)) << "after step " << taken << "\n" << pipeline.text;
      }
    }
  }
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
      resumed->seek(static_cast<std::int64_t>(skip));
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

TEST(DistributeProperty, PlansTellTheRowsOfEachWorker) {
  for (const auto rule : {SplitRule::CeilSplit, SplitRule::BalancedStream}) {
    for (const bool drop : {false, true}) {
      for (std::int64_t rows = 0; rows < 40; rows += 7) {
        const StagePtr dataset = std::make_shared<OptionsStage>(
            std::make_shared<BatchStage>(make_range(0, rows), 10, BatchOptions{.drop_remainder = drop}),
            DatasetOptions{rule == SplitRule::CeilSplit ? AutoShardPolicy::Data : AutoShardPolicy::Off});
        for (int worker = 0; worker < 3; ++worker) {
          const ClusterShape cluster{3, 2, worker};
          const InputPlan plan = plan_input(dataset, policy_of(*dataset), Assignment::ByReplica, cluster);
          ASSERT_EQ(plan.split.rule, rule);
          DistributedCursor cursor(input_of(plan, 0));
          std::int64_t count = 0;
          for (const Step& step : read_all(cursor)) {
            for (const Rows& mine : step) count += std::ssize(mine);
          }
          EXPECT_EQ(rows_of_worker(rows, 10, drop, rule, cluster, Assignment::ByReplica), count) << rows;
          EXPECT_NE(to_string(plan).find(str("worker ", worker, " of 3: pieces ", 2 * worker, ",", 2 * worker + 1,
                                             " of every step's 6 (ByReplica), ", count, " rows")),
                    std::string::npos)
              << to_string(plan);
        }
      }
    }
  }
}

TEST(OwnRows, OnlyRowsOfOwnReplicasAreComputed) {
  for (const bool drop : {false, true}) {
    for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Off}) {
      std::int64_t all = 0;
      for (int worker = 0; worker < 4; ++worker) {
        const auto computed = std::make_shared<std::atomic<std::int64_t>>(0);
        const StagePtr rows = std::make_shared<MapStage>(
            std::make_shared<ShuffleStage>(make_range(0, 70), 20), [computed](Element&) { ++*computed; },
            ElementSpec::unknown(1), MapOptions{.spec = [](const ElementSpec& spec) { return spec; }});
        const StagePtr dataset = std::make_shared<BatchStage>(rows, 16, BatchOptions{.drop_remainder = drop});
        const ClusterShape cluster{4, 1, worker};
        const InputPlan plan = plan_input(dataset, policy, Assignment::ByReplica, cluster);
        DistributedCursor cursor(input_of(plan, 0));
        read_all(cursor);
        EXPECT_EQ(*computed, rows_of_worker(70, 16, drop, plan.split.rule, cluster, Assignment::ByReplica)) << worker;
        all += *computed;
      }
      EXPECT_EQ(all, drop ? 64 : 70);
    }
  }
}

TEST(OwnRows, ACacheIsFilledInTheFirstPass) {
  for (const bool drop : {false, true}) {
    for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Off}) {
      for (const std::int64_t rows : {64, 70}) {
        const auto computed = std::make_shared<std::atomic<std::int64_t>>(0);
        const StagePtr cached = std::make_shared<CacheStage>(std::make_shared<MapStage>(
            make_range(0, rows), [computed](Element&) { ++*computed; }, ElementSpec::unknown(1),
            MapOptions{.spec = [](const ElementSpec& spec) { return spec; }}));
        const StagePtr dataset = std::make_shared<BatchStage>(cached, 16, BatchOptions{.drop_remainder = drop});
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

TEST(InputPlan, SaysInFewWordsWhoReadsWhichOfManyFiles) {
  const auto plan_of = [](std::size_t files, int workers) {
    const StagePtr names = make_slices(Element({Strings(std::vector<std::string>(files, "a"))}));
    const StagePtr dataset = std::make_shared<BatchStage>(make_text_line_stage(names, {}), 96);
    return to_string(plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, {workers, 1, 1}));
  };
  EXPECT_NE(plan_of(20, 2).find("worker 1 of 2: files 1,3,5,7,9,11,13,15,17,19 (FILE)"), std::string::npos);
  EXPECT_NE(plan_of(400, 2).find("worker 1 of 2: one file in 2, from file 1 on (FILE)"), std::string::npos);
  EXPECT_NE(plan_of(1500, 3).find("worker 0 of 3: one file in 3, from file 0 on (FILE)"), std::string::npos);
}

TEST(InputPlan, SaysWhoReadsWhichFiles) {
  const StagePtr names = make_slices(Element({Strings({"a", "b", "c", "d", "e", "f", "g", "h"})}));
  const StagePtr dataset = std::make_shared<BatchStage>(make_text_line_stage(names, {}), 96);
  const InputPlan plan = plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, {3, 1, 1});
  EXPECT_EQ(to_string(plan),
            "3 workers of 1 replica, batches of 96, balanced stream\n"
            "worker 0 of 3: files 0,3,6 (FILE), rows unknown until read\n"
            "worker 1 of 3: files 1,4,7 (FILE), rows unknown until read\n"
            "worker 2 of 3: files 2,5 (FILE), rows unknown until read\n");
  EXPECT_EQ(to_string(plan_input(dataset, AutoShardPolicy::Auto, Assignment::ByReplica, {2, 2, 1})),
            "2 workers of 2 replicas, batches of 96, balanced stream; every worker goes through all files\n"
            "worker 0 of 2: pieces 0,1 of every step's 4 (ByReplica), rows unknown until read\n"
            "worker 1 of 2: pieces 2,3 of every step's 4 (ByReplica), rows unknown until read\n");
  EXPECT_THROW(
      check_enough_for_all(plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, {9, 1, 8}).shards),
      InvalidArgument);
  EXPECT_NO_THROW(
      check_enough_for_all(plan_input(dataset, AutoShardPolicy::Auto, Assignment::ByReplica, {9, 1, 8}).shards));
}

TEST(InputPlan, WarnsWhereRowsAreComputedAndThrownAway) {
  const auto warning = [](const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment, int workers) {
    return fallback_warning(plan_input(dataset, policy, assignment, {workers, 1, 0})).value_or("");
  };
  const auto same_spec = [](const ElementSpec& spec) { return spec; };
  const auto mapped = [&](const StagePtr& input, int calls = 0) {
    return std::make_shared<MapStage>(
        input, [](Element&) {}, ElementSpec::unknown(1), MapOptions{.parallel_calls = calls, .spec = same_spec});
  };
  const StagePtr rows = make_range(0, 40);
  const StagePtr batches = std::make_shared<BatchStage>(rows, 8);
  const StagePtr filtered = std::make_shared<FilterStage>(rows, [](const Element&) { return true; });
  const StagePtr generated = std::make_shared<GeneratorStage>([] { return [](Element&) { return false; }; },
                                                              rows->element_spec(), GeneratorOptions{});

  // By TensorFlow's rules every worker reads everything that is not in files.
  const std::string text = warning(batches, AutoShardPolicy::Auto, Assignment::TensorFlow, 3);
  for (const char* part : {"range has no files", "distribute_from_function", "3 workers", "1/3"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(warning(batches, AutoShardPolicy::Data, Assignment::TensorFlow, 3), "");
  EXPECT_EQ(warning(batches, AutoShardPolicy::Auto, Assignment::TensorFlow, 1), "");

  // By replica only if the rows of others cannot be left out.
  struct Case {
    StagePtr dataset;
    const char* named;  // nullptr: no warning
  };
  const Case cases[] = {
      {batches, nullptr},
      {std::make_shared<BatchStage>(mapped(std::make_shared<ShuffleStage>(rows, 10)), 8), nullptr},
      {std::make_shared<OptionsStage>(std::make_shared<BatchStage>(std::make_shared<RepeatStage>(rows, 2), 8),
                                      DatasetOptions{}),
       nullptr},
      {mapped(batches), "and map cannot pass over"},
      {std::make_shared<RepeatStage>(batches, 2), "and repeat cannot"},
      {std::make_shared<BatchStage>(mapped(rows, 2), 8), "and parallel_map cannot"},
      {std::make_shared<BatchStage>(filtered, 8), "and filter cannot"},
      {std::make_shared<BatchStage>(std::make_shared<ShuffleStage>(filtered, 10), 8), "and shuffle cannot"},
      {std::make_shared<BatchStage>(generated, 8), "because from_generator has no files"},
  };
  for (const Case& c : cases) {
    const std::string seen = warning(c.dataset, AutoShardPolicy::Auto, Assignment::ByReplica, 3);
    if (c.named == nullptr) {
      EXPECT_EQ(seen, "") << print_tree(*c.dataset);
    } else {
      EXPECT_NE(seen.find(c.named), std::string::npos) << seen << '\n' << print_tree(*c.dataset);
    }
    EXPECT_EQ(warning(c.dataset, AutoShardPolicy::Data, Assignment::ByReplica, 3), "");
    EXPECT_EQ(warning(c.dataset, AutoShardPolicy::Auto, Assignment::ByReplica, 1), "");
  }
}

TEST(InputPlan, WritesThousands) {
  EXPECT_EQ(with_thousands(4096), "4,096");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1234567), "1,234,567");
  EXPECT_EQ(with_thousands(-123), "-123");
}

}  // namespace
}  // namespace lockstep::data
