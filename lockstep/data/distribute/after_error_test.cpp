// How a distributed iterator behaves after a user's function or generator threw.
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "tests/support/distributed_steps.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kRows = 50;

/// Numbers, some of which throw when computed.
StagePtr numbers_failing_at(const Rows& bad, MapOptions options = {}) {
  options.spec = [](const ElementSpec& spec) { return spec; };
  return make_map(
      make_shuffle(make_range(0, kRows), 20),
      [bad](Element& element) {
        const std::int64_t row = element.tensor(0).item().toLong();
        if (std::ranges::count(bad, row) > 0) throw std::runtime_error(std::to_string(row));
      },
      ElementSpec::unknown(1), std::move(options));
}

bool holds_any(const Step& step, const Rows& bad) {
  return std::ranges::any_of(step, [&](const Rows& rows) {
    return std::ranges::any_of(rows, [&](std::int64_t row) { return std::ranges::count(bad, row) > 0; });
  });
}

TEST(AfterAnError, ADistributedIteratorGoesOnBehindTheStepThatFailed) {
  const std::vector<Rows> cases = {{13}, {0, 1, 2, 3, 4, 5, 6}, {7, 30, 49}, {21, 22}};
  for (const WayToCut& way : kWaysToCut) {
    for (const int replicas : {1, 2, 3}) {
      for (const int buffer : {0, 1, 3}) {
        for (const MapOptions& options : {MapOptions{}, MapOptions{.parallel_calls = 2}}) {
          const auto input = [&](const Rows& bad) {
            const StagePtr dataset = make_batch(numbers_failing_at(bad, options), 8);
            return input_of(plan_input(dataset, way.policy, way.assignment, {1, replicas, 0}), buffer);
          };
          DistributedCursor whole(input({}));
          const Steps good = read_all(whole);
          for (const Rows& bad : cases) {
            Steps expected = good;
            for (Step& step : expected) {
              if (holds_any(step, bad)) step.clear();
            }
            DistributedCursor cursor(input(bad));
            ASSERT_EQ(read_with_failures(cursor), expected)
                << to_string(way) << ' ' << replicas << " replicas, buffer " << buffer;
            ASSERT_EQ(cursor.state().consumed, std::ssize(good));
          }
        }
      }
    }
  }
}

/// Usual continuations after `batch`, or replacements for it.
std::vector<StagePtr> ways_to_batch(const StagePtr& rows, std::int64_t size) {
  const auto same_spec = [](const ElementSpec& spec) { return spec; };
  const StagePtr batch = make_batch(rows, size);
  const StagePtr no_rest = make_batch(rows, size, BatchOptions{.drop_remainder = true});
  const StagePtr padded = make_padded_batch(rows, size, PaddedBatchOptions{});
  const auto mapped = [&](const StagePtr& input) {
    return make_map(
        input, [](Element&) {}, ElementSpec::unknown(1), MapOptions{.spec = same_spec});
  };
  return {batch,
          no_rest,
          padded,
          make_prefetch(batch, 2),
          make_repeat(batch, 3),
          make_repeat(no_rest, 2),
          make_repeat(padded, 2),
          make_prefetch(make_repeat(batch, 2), 1),
          make_take(batch, 5),
          make_take(make_repeat(batch, 3), 15),
          make_skip(make_repeat(batch, 2), 3),
          make_shuffle(batch, 4),
          make_repeat(make_shuffle(batch, 4), 2),
          make_shard(make_repeat(batch, 3), 2, 1),
          make_concatenate(batch, padded),
          make_filter(batch, [](const Element& b) { return b.tensor(0)[0].item().toLong() != 11; }),
          make_cache(batch),
          mapped(batch),
          mapped(make_repeat(no_rest, 2)),
          make_repeat(make_cache(batch), 3),
          make_repeat(make_cache(make_shuffle(batch, 4)), 2)};
}

/// The steps of a dataset, empty for those with a row of a failed batch.
std::vector<Step> steps_without(const std::vector<Rows>& batches, const Rows& bad, const InputPlan& plan) {
  Rows values;
  std::vector<bool> fails;
  std::vector<Rows> places;  // the batches as row numbers of the stream
  for (const Rows& batch : batches) {
    Rows& mine = places.emplace_back();
    for (const std::int64_t value : batch) {
      mine.push_back(std::ssize(values));
      values.push_back(value);
      fails.push_back(holds_any({batch}, bad));
    }
  }
  const auto replicas = static_cast<std::size_t>(plan.cluster.replicas());
  Steps steps = dealt(pieces_by_rule(places, plan.split.rule, plan.global_batch_size, plan.cluster.replicas()),
                      replicas, plan.partial_steps);
  for (Step& step : steps) {
    bool failed = false;
    for (Rows& rows : step) {
      for (std::int64_t& row : rows) {
        failed = failed || fails[static_cast<std::size_t>(row)];
        row = values[static_cast<std::size_t>(row)];
      }
    }
    if (failed) step.clear();
  }
  return steps;
}

TEST(AfterAnError, WhateverMakesTheBatches) {
  set_log_severity(Severity::Error);  // caches log that they remember nothing
  const std::size_t ways = ways_to_batch(make_range(0, 1), 8).size();
  const std::vector<Rows> cases = {{13}, {0, 7, 49}, {3, 30, 31}};
  for (std::size_t way = 0; way < ways; ++way) {
    for (const WayToCut& how : kWaysToCut) {
      for (const int replicas : {1, 2, 3}) {
        for (const Rows& bad : cases) {
          const auto plan_of = [&](const Rows& failing) {
            const StagePtr dataset = ways_to_batch(numbers_failing_at(failing), 8).at(way);
            return plan_input(dataset, how.policy, how.assignment, {1, replicas, 0});
          };
          const auto text = [&] {
            return str(print_tree(*plan_of({}).pipeline()), to_string(plan_of({})), to_string(how));
          };
          const Steps expected =
              steps_without(batches_of(ways_to_batch(numbers_failing_at({}), 8).at(way)), bad, plan_of({}));
          DistributedCursor cursor(input_of(plan_of(bad), replicas - 1));
          ASSERT_EQ(read_with_failures(cursor), expected) << text();
          DistributedCursor again(input_of(plan_of(bad), 1));
          for (std::size_t taken = 0; taken <= expected.size(); ++taken) {
            DistributedCursor resumed =
                resume_cursor(input_of(plan_of(bad), 0), IteratorState::parse(again.state().serialize()));
            ASSERT_EQ(read_with_failures(resumed),
                      Steps(expected.begin() + static_cast<std::ptrdiff_t>(taken), expected.end()))
                << "after step " << taken << '\n'
                << text();
            try {
              again.next();
            } catch (const std::runtime_error&) {
            }
          }
        }
      }
    }
  }
  set_log_severity(Severity::Info);
}

TEST(AfterAnError, AShortBatchBelowACacheStandsForItsRows) {
  set_log_severity(Severity::Error);  // the cache logs that it remembers nothing
  const StagePtr rows = make_map(
      make_range(0, 7),
      [](Element& element) {
        if (element.tensor(0).item().toLong() == 6) throw std::runtime_error("6");
      },
      ElementSpec::unknown(1), MapOptions{.spec = [](const ElementSpec& spec) { return spec; }});
  const StagePtr batches = make_batch(rows, 3);
  const Step failed;
  for (const StagePtr& once : {batches, StagePtr(make_cache(batches))}) {
    const StagePtr dataset = make_repeat(once, 2);
    const auto steps_by = [&](Assignment assignment) {
      DistributedCursor cursor(input_of(plan_input(dataset, AutoShardPolicy::Off, assignment, {1, 2, 0}), 0));
      return read_with_failures(cursor);
    };
    EXPECT_EQ(steps_by(Assignment::TensorFlow), (Steps{{{0, 1}, {2}}, {{3, 4}, {5}}, failed, {{2, 3}, {4}}, failed}))
        << print_tree(*dataset);
    EXPECT_EQ(steps_by(Assignment::ByReplica),
              (Steps{{{0, 1}, {2}}, {{3, 4}, {5}}, failed, {{0, 1}, {2}}, {{3, 4}, {5}}, failed}))
        << print_tree(*dataset);
  }
  set_log_severity(Severity::Info);
}

TEST(Resuming, ComputesNothingThatLiesBehind) {
  const auto computed = std::make_shared<std::atomic<int>>(0);
  const auto dataset = [&](std::size_t way) {
    const StagePtr rows = make_map(
        make_range(0, 2000), [computed](Element&) { ++*computed; }, ElementSpec::unknown(1),
        MapOptions{.spec = [](const ElementSpec& spec) { return spec; }});
    return ways_to_batch(rows, 8).at(way);
  };
  const std::size_t ways = ways_to_batch(make_range(0, 1), 8).size();
  for (std::size_t way = 0; way < ways; ++way) {
    const std::string tree = print_tree(*dataset(way));
    if (tree.find("filter") != std::string::npos || tree.find("cache") != std::string::npos)
      continue;  // must read rows
                 // rows
    for (const WayToCut& how : kWaysToCut) {
      const auto input = [&] { return input_of(plan_input(dataset(way), how.policy, how.assignment, {1, 2, 0}), 0); };
      DistributedCursor whole(input());
      const int steps = way == 8 ? 3 : way == 9 ? 13 : 230;
      for (int i = 0; i < steps; ++i) ASSERT_TRUE(whole.next()) << tree;
      const IteratorState state = whole.state();
      *computed = 0;
      DistributedCursor resumed = resume_cursor(input(), state);
      ASSERT_EQ(step_of(*resumed.next()), step_of(*whole.next())) << tree;
      // A shuffle of batches fills its buffer; a prefetch reads ahead.
      EXPECT_LE(*computed, 8 * 10) << tree << to_string(how);
    }
  }
}

TEST(AfterAnError, PositionsStayExact) {
  for (const int buffer : {0, 2}) {
    for (const WayToCut& way : kWaysToCut) {
      const Rows bad = {3, 17, 18, 40};
      const auto input = [&] {
        const StagePtr dataset = make_batch(numbers_failing_at(bad), 8);
        return input_of(plan_input(dataset, way.policy, way.assignment, {1, 3, 0}), buffer);
      };
      DistributedCursor whole(input());
      const Steps all = read_with_failures(whole);
      DistributedCursor cursor(input());
      for (std::size_t calls = 0; calls < all.size(); ++calls) {
        bool failed = false;
        try {
          cursor.next();
        } catch (const std::runtime_error&) {
          failed = true;
        }
        ASSERT_EQ(failed, all[calls].empty());
        ASSERT_EQ(cursor.state().consumed, static_cast<std::int64_t>(calls) + 1) << "a step that failed counts";
        DistributedCursor resumed = resume_cursor(input(), IteratorState::parse(cursor.state().serialize()));
        ASSERT_EQ(read_with_failures(resumed), Steps(all.begin() + static_cast<std::ptrdiff_t>(calls) + 1, all.end()))
            << "after call " << calls;
      }
    }
  }
}

StagePtr generator_failing_at(std::int64_t bad, bool replayable) {
  return make_generator(
      [bad]() -> Generator {
        return [bad, next = std::int64_t{0}](Element& element) mutable {
          if (next == bad) throw std::runtime_error("the generator is broken");
          element = Element::of(at::scalar_tensor(next++, at::kLong));
          return next < kRows;
        };
      },
      ElementSpec::of(Element::of(at::scalar_tensor(0, at::kLong))), GeneratorOptions{.replayable = replayable});
}

TEST(AfterAnError, WhatCannotBePassedOverIsThrownAgain) {
  const auto expect_again = [](const StagePtr& rows, const ClusterShape& cluster, const std::string& text) {
    for (const int buffer : {0, 1, 3}) {
      const StagePtr dataset = make_batch(rows, 8);
      DistributedCursor cursor(
          input_of(plan_input(dataset, AutoShardPolicy::Data, Assignment::ByReplica, cluster), buffer));
      const Steps seen = read_with_failures(cursor, 9);
      ASSERT_EQ(seen.size(), 9u) << text << " does not end";
      for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i].empty(), i >= 2) << text << ", call " << i;
      if (cluster.workers > 1) {
        EXPECT_EQ(cursor.state().consumed, 2) << "a worker does not pass over steps";
      }
    }
  };
  expect_again(generator_failing_at(20, false), {1, 2, 0}, "a generator that always fails there");
  const StagePtr mapped = make_map(
      make_range(0, kRows),
      [](Element& element) {
        if (element.tensor(0).item().toLong() == 20) throw std::runtime_error("the map is broken");
      },
      ElementSpec::unknown(1), MapOptions{.spec = [](const ElementSpec& spec) { return spec; }});
  expect_again(mapped, {2, 1, 1}, "one of two workers");
}

TEST(AfterAnError, NothingIsReadASecondTime) {
  std::atomic<int> failures = 0;
  const StagePtr rows = make_filter(make_range(0, kRows), [&](const Element& element) {
    if (element.tensor(0).item().toLong() == 20) throw std::runtime_error(std::to_string(++failures));
    return true;
  });
  const StagePtr dataset = make_batch(rows, 8);
  DistributedCursor cursor(input_of(plan_input(dataset, AutoShardPolicy::Data, Assignment::ByReplica, {1, 2, 0}), 1));
  const Steps seen = read_with_failures(cursor);
  ASSERT_EQ(seen.size(), 7u);
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(seen[1], (Step{{8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_TRUE(seen[2].empty());
  EXPECT_EQ(seen[3], (Step{{24, 25, 26, 27}, {28, 29, 30, 31}}));
  EXPECT_EQ(cursor.state().consumed, 7);
}

TEST(AfterAnError, AWorkersShareStaysTheSameIfItsFirstElementFails) {
  const auto share = [](std::int64_t rows, int worker, std::int64_t bad, std::int64_t skipped) {
    const StagePtr numbers = make_map(
        make_range(0, rows),
        [bad](Element& element) {
          if (element.tensor(0).item().toLong() == bad) throw std::runtime_error("bad row");
        },
        ElementSpec::unknown(1), MapOptions{});
    PipelineIterator iterator(make_required_shard(numbers, 3, worker), kContext);
    EXPECT_EQ(iterator.skip(skipped), skipped);
    Rows seen;
    for (Element element; seen.size() < 20;) {
      try {
        if (!iterator.next(element)) break;
        seen.push_back(element.tensor(0).item().toLong());
      } catch (const std::runtime_error&) {
        seen.push_back(-1);
      }
    }
    return seen;
  };
  EXPECT_EQ(share(18, 1, 1, 0), (Rows{-1, 4, 7, 10, 13, 16}));
  EXPECT_EQ(share(18, 1, 1, 1), (Rows{4, 7, 10, 13, 16}));
  EXPECT_EQ(share(18, 1, 4, 1), (Rows{-1, 7, 10, 13, 16}));
  EXPECT_EQ(share(4, 0, 0, 0), (Rows{-1, 3})) << "there is one for each, though not of the last round";
  EXPECT_EQ(share(4, 0, 0, 1), (Rows{3}));
  EXPECT_THROW(share(2, 0, 0, 0), InvalidArgument) << "not one for each";
}

TEST(AfterAnError, PipelinesOfEachReplicaStayTogether) {
  const std::vector<StagePtr> pipelines = {make_batch(numbers_failing_at({}), 4),
                                           make_batch(numbers_failing_at({25}), 4)};
  for (const int buffer : {0, 2}) {
    DistributedInput input = distributed_pipelines(pipelines, {1, 2, 0}, true);
    input.buffer_size = buffer;
    DistributedCursor cursor(std::make_shared<const DistributedInput>(std::move(input)));
    const Steps seen = read_with_failures(cursor);
    ASSERT_EQ(seen.size(), 13u);
    int failed = 0;
    for (const Step& step : seen) {
      if (step.empty()) {
        ++failed;
      } else {
        EXPECT_EQ(step[0], step[1]);
      }
    }
    EXPECT_EQ(failed, 1);
  }
}

TEST(DistributedPipelines, ArePositionsOfOneNumberOfReplicas) {
  const auto input = [](int replicas) {
    const StagePtr batches = make_batch(make_range(0, kRows), 2);
    return std::make_shared<const DistributedInput>(distributed_pipelines({batches}, {1, replicas, 0}, false));
  };
  DistributedCursor cursor(input(2));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(cursor.next());
  DistributedCursor same = resume_cursor(input(2), cursor.state());
  EXPECT_EQ(step_of(*same.next()), (Step{{12, 13}, {14, 15}}));
  EXPECT_THROW(resume_cursor(input(4), cursor.state()), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
