// State of stages that distributed iterators need in addition to the number of steps taken.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "tests/support/distributed_steps.h"

namespace lockstep::data {
namespace {

StagePtr same(StagePtr input, MapOptions options = {}) {
  return make_map(std::move(input), MapFunction([](Element&) {}), ElementSpec::unknown(1), std::move(options));
}

StagePtr cached_rows() { return make_cache(same(make_shuffle(make_range(0, 30), 30))); }

TEST(KeptState, ACacheThatAnotherSeedFilledGoesOnAsItWas) {
  for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
    for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Off}) {
      for (const bool from_function : {false, true}) {
        const auto input = [&](const StagePtr& rows) {
          const StagePtr batches = make_batch(rows, 4);
          if (!from_function) return input_of(plan_input(batches, policy, assignment, {1, 2, 0}), 1);
          return std::make_shared<const DistributedInput>(distributed_pipelines({batches, batches}, {1, 2, 0}, true));
        };
        const StagePtr rows = cached_rows();
        PipelineIterator looked_through(rows, IterationContext{.job_seed = 99});
        looked_through.skip(100);
        DistributedCursor cursor(input(rows));
        cursor.next();
        cursor.next();
        const IteratorState state = IteratorState::parse(cursor.state().serialize());
        const Steps rest = read_all(cursor);
        DistributedCursor resumed = resume_cursor(input(cached_rows()), state);
        ASSERT_EQ(read_all(resumed), rest) << lockstep::to_string(policy) << (from_function ? " from a function" : "");
        const StagePtr filled = cached_rows();
        PipelineIterator otherwise(filled, IterationContext{.job_seed = 98});
        otherwise.skip(100);
        DistributedCursor refused(input(filled));
        EXPECT_THROW(refused.load_state(state), FailedPrecondition);
        EXPECT_THROW(refused.next(), FailedPrecondition) << "nor can it be used in between";
      }
    }
  }
}

/// The second worker never has a row, and the function's result is unknown without calling it.
TEST(KeptState, EmptyBatchesLookLikeTheRowsOfOtherWorkers) {
  for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Auto, AutoShardPolicy::Off}) {
    for (const std::int64_t rows : {1, 5}) {
      const auto input = [&](int worker) {
        const StagePtr triples = make_map(
            make_range(0, rows), MapFunction([](Element& row) { row.components[0] = at::ones({3}, at::kInt); }),
            ElementSpec::unknown(1), MapOptions{});
        return input_of(plan_input(make_batch(triples, 4), policy, Assignment::ByReplica, {2, 1, worker}), 1);
      };
      DistributedCursor first(input(0));
      for (std::int64_t step = 0; step < rows / 4; ++step) first.next();
      DistributedCursor second = resume_cursor(input(1), IteratorState::parse(first.state().serialize()));
      const auto values = second.next();
      ASSERT_TRUE(values) << lockstep::to_string(policy) << ", " << rows << " rows";
      EXPECT_EQ(values->at(0).tensor(0).sizes(), (std::vector<std::int64_t>{0, 3}));
      EXPECT_EQ(values->at(0).tensor(0).scalar_type(), at::kInt);
      EXPECT_FALSE(second.next());
    }
  }
}

TEST(KeptState, DatasetsMadeByFunctionsCanForbidPositions) {
  const StagePtr expanded = make_interleave(
      make_range(0, 3),
      [](Element&&) { return same(make_range(0, 8), {.parallel_calls = 2, .ordered = false, .name = "hasty"}); },
      ElementSpec::unknown(1), std::nullopt);
  const StagePtr batches = make_batch(expanded, 4);
  DistributedCursor cursor(input_of(plan_input(batches, AutoShardPolicy::Data, Assignment::ByReplica, {1, 2, 0}), 0));
  cursor.next();
  try {
    cursor.state();
    ADD_FAILURE() << "saved";
  } catch (const FailedPrecondition& error) {
    EXPECT_NE(std::string(error.what()).find("hasty"), std::string::npos) << error.what();
  }
}

TEST(KeptState, BuffersAndThreadsAreNoPartOfAPosition) {
  const auto input = [](int calls, std::int64_t ahead) {
    StagePtr stage = make_batch(same(make_range(0, 30), {.parallel_calls = calls}), 4);
    if (ahead > 0) stage = make_prefetch(stage, ahead);
    return input_of(plan_input(stage, AutoShardPolicy::Data, Assignment::ByReplica, {1, 2, 0}), 1);
  };
  DistributedCursor cursor(input(0, 0));
  cursor.next();
  const IteratorState state = cursor.state();
  const Steps rest = read_all(cursor);
  for (const auto& [calls, ahead] : {std::pair{2, 0}, std::pair{0, 5}, std::pair{3, 1}}) {
    DistributedCursor resumed = resume_cursor(input(calls, ahead), state);
    EXPECT_EQ(read_all(resumed), rest);
  }
}

// Whether an error in a dropped remainder is reported does not depend on the number of workers, nor on whether the
// number of rows is known.
TEST(KeptState, ARemainderThatIsDroppedIsDroppedOnEveryWorker) {
  const auto rows = [](bool size_is_known, const Rows& bad) {
    StagePtr numbers =
        make_map(make_range(0, 22), MapFunction([bad](Element& element) {
                   const std::int64_t row = element.tensor(0).item().toLong();
                   if (std::ranges::count(bad, row) > 0) throw std::runtime_error("bad row");
                 }),
                 ElementSpec::unknown(1), MapOptions{.spec = [](const ElementSpec& spec) { return spec; }});
    if (!size_is_known) numbers = make_filter(numbers, [](const Element&) { return true; });
    return make_batch(numbers, 8, BatchOptions{.drop_remainder = true});
  };
  for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Off}) {
    for (const bool size_is_known : {true, false}) {
      for (std::int64_t bad = 16; bad < 22; ++bad) {
        for (const ClusterShape& shape : {ClusterShape{1, 4, 0}, ClusterShape{2, 2, 0}, ClusterShape{4, 1, 0}}) {
          for (int worker = 0; worker < shape.workers; ++worker) {
            const ClusterShape cluster{shape.workers, shape.replicas_per_worker, worker};
            DistributedCursor cursor(
                input_of(plan_input(rows(size_is_known, {bad}), policy, Assignment::ByReplica, cluster), 0));
            ASSERT_EQ(read_all(cursor).size(), 2u)
                << lockstep::to_string(policy) << " row " << bad << ", worker " << worker << " of " << shape.workers;
            if (shape.workers == 1) continue;
            DistributedCursor failing(
                input_of(plan_input(rows(size_is_known, {bad - 8}), policy, Assignment::ByReplica, cluster), 0));
            failing.next();
            const bool own = (bad - 16) / 2 / shape.replicas_per_worker == worker;
            if (own) {
              EXPECT_THROW(failing.next(), std::runtime_error) << "a batch that is not dropped";
            }
          }
        }
      }
    }
  }
}

/// range(count), whose functions count their calls; the number of rows is unknown beforehand.
struct CountedRows {
  std::shared_ptr<int> below = std::make_shared<int>(0);  ///< calls of the function below the filter
  std::shared_ptr<int> above = std::make_shared<int>(0);

  static StagePtr counting(StagePtr input, std::shared_ptr<int> calls) {
    return make_map(std::move(input), MapFunction([calls](Element& row) {
                      ++*calls;
                      row.tensor(0).add_(100);  // a cached copy must not see this
                    }),
                    ElementSpec::unknown(1), MapOptions{});
  }
  StagePtr rows(std::int64_t count) const {
    const StagePtr filtered = make_filter(counting(make_range(0, count), below), [](const Element&) { return true; });
    return counting(filtered, above);
  }
};

TEST(KeptState, AShortLastBatchThatNobodyKnewOfIsNotComputedTwice) {
  for (const ClusterShape& shape : {ClusterShape{2, 1, 0}, ClusterShape{2, 2, 0}, ClusterShape{3, 1, 0}}) {
    for (const std::int64_t count : {0, 1, 7, 8, 9, 13, 21, 23, 24}) {
      const CountedRows all;
      const auto pieces =
          even_pieces(batches_of(make_batch(all.rows(count), 8)), static_cast<std::size_t>(shape.replicas()));
      for (int worker = 0; worker < shape.workers; ++worker) {
        const std::string which = lockstep::str(count, " rows, worker ", worker, " of ", shape.workers);
        const ClusterShape cluster{shape.workers, shape.replicas_per_worker, worker};
        Steps expected;
        for (std::size_t first = 0; first < pieces.size(); first += static_cast<std::size_t>(shape.replicas())) {
          const auto begin = pieces.begin() + static_cast<std::ptrdiff_t>(first) + worker * shape.replicas_per_worker;
          expected.emplace_back(begin, begin + shape.replicas_per_worker);
        }
        for (const std::size_t resumed_at : {0u, 1u, 2u}) {
          if (resumed_at > expected.size()) continue;
          const CountedRows own;
          const auto input = input_of(
              plan_input(make_batch(own.rows(count), 8), AutoShardPolicy::Data, Assignment::ByReplica, cluster), 0);
          DistributedCursor cursor(input);
          for (std::size_t step = 0; step < resumed_at; ++step) cursor.next();
          DistributedCursor resumed = resume_cursor(input, cursor.state());
          *own.below = *own.above = 0;
          ASSERT_EQ(read_all(resumed),
                    Steps(expected.begin() + static_cast<std::ptrdiff_t>(resumed_at), expected.end()))
              << which;
          EXPECT_LE(*own.below, count) << which;  // a worker may skip the end of the last full batch
          std::size_t own_rows = 0;
          for (std::size_t step = resumed_at; step < expected.size(); ++step)
            for (const Rows& piece : expected[step]) own_rows += piece.size();
          EXPECT_LE(*own.above, static_cast<int>(own_rows) + 8 + 1) << which;  // the last batch, and a look at a row
        }
      }
    }
  }
}

TEST(KeptState, ErrorsOfAShortLastBatchAreCountedOnce) {
  for (int worker = 0; worker < 2; ++worker) {
    const auto counter = std::make_shared<ErrorCounter>();
    const StagePtr failing = make_map(make_range(0, 11), MapFunction([](Element& row) {
                                        if (row.tensor(0).item().toLong() % 3 == 1) throw std::runtime_error("bad row");
                                      }),
                                      ElementSpec::unknown(1), MapOptions{});
    const StagePtr rows = make_ignore_errors(failing, IgnoreErrorsOptions{.counter = counter});
    DistributedCursor cursor(
        input_of(plan_input(make_batch(rows, 4), AutoShardPolicy::Data, Assignment::ByReplica, {2, 1, worker}), 0));
    EXPECT_EQ(read_all(cursor), worker == 0 ? (Steps{{{0, 2}}, {{6, 8}}}) : (Steps{{{3, 5}}, {{9}}}));
    EXPECT_EQ(counter->count(), 4) << "worker " << worker;
  }
}

/// A worker without data whose share of a step may be an empty batch does not guess its shape.
TEST(KeptState, EmptyBatchesAreNotGuessed) {
  const StagePtr unknown = make_filter(same(make_range(0, 3)), [](const Element&) { return false; });
  const auto stream = make_rebatch(make_batch(unknown, 2), {0, 1}, false);
  const IteratorPtr pieces = stream->iterate({});
  Element piece = Element::of(at::ones({3}));
  ASSERT_TRUE(pieces->next(piece));
  EXPECT_EQ(piece.size(), 0u);
  EXPECT_FALSE(pieces->next(piece));
  DistributedCursor cursor(std::make_shared<const DistributedInput>(distributed_pipelines({stream}, {1, 2, 0}, false)));
  try {
    cursor.next();
    ADD_FAILURE() << "guessed";
  } catch (const FailedPrecondition& error) {
    EXPECT_EQ(error.number(), errors::kSignature) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::data
