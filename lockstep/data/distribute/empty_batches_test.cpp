// Workers that run out of data, or never have any, among workers that have some.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <stdexcept>

#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "tests/support/distributed_steps.h"
#include "tests/support/file_stages.h"
#include "tests/support/logged_lines.h"

namespace lockstep::data {
namespace {

/// Sums the reports of all workers about a step.
class Meeting {
 public:
  explicit Meeting(int workers) : workers_(workers) {}

  StepTotals total(const StepTotals& mine_here) {
    std::unique_lock lock(mutex_);
    sum_.values += mine_here.values;
    sum_.helpless += mine_here.helpless;
    sum_.failed += mine_here.failed;
    sum_.failed_ids += mine_here.failed_ids;
    const int mine = round_;
    if (++arrived_ == workers_) {
      result_ = std::exchange(sum_, {});
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return round_ != mine; })) {
      throw std::runtime_error("a worker did not come to the meeting within 60 s");
    }
    return result_;
  }

 private:
  const int workers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  StepTotals sum_, result_;
  int arrived_ = 0, round_ = 0;
};

struct Outcome {
  std::vector<DistributedCursor::Values> steps;
  std::optional<Error> error, again;  ///< the errors of the first and the following call
};

/// The outcome on every worker, until the end or an error.
std::vector<Outcome> run_workers(int workers, const std::function<DistributedInput(int)>& make) {
  const auto meeting = std::make_shared<Meeting>(workers);
  std::vector<std::future<Outcome>> running;
  for (int worker = 0; worker < workers; ++worker) {
    running.push_back(std::async(std::launch::async, [&, worker] {
      DistributedInput input = make(worker);
      input.agreement = agreement_by(meeting);
      DistributedCursor cursor(std::make_shared<const DistributedInput>(std::move(input)));
      Outcome outcome;
      try {
        while (auto values = cursor.next()) outcome.steps.push_back(std::move(*values));
      } catch (const Error& error) {
        outcome.error = error;
      }
      try {
        cursor.next();
      } catch (const Error& error) {
        outcome.again = error;
      }
      return outcome;
    }));
  }
  std::vector<Outcome> outcomes;
  for (auto& worker : running) outcomes.push_back(worker.get());
  return outcomes;
}

/// Pairs whose spec is known only from their data.
StagePtr without_spec(const StagePtr& input) {
  return make_batch(make_map(
                        input,
                        [](Element& element) {
                          element = Element({at::zeros({}, at::kLong), at::zeros({2}, at::kDouble)});
                        },
                        ElementSpec::unknown(2), MapOptions{}),
                    2);
}

TEST(WorkersWithoutData, LookAtTheFilesOfOthersToSeeWhatEmptyBatchesLookLike) {
  const Folder folder("empty_batches");
  std::vector<std::string> files;
  for (const char* lines : {"", "1\n2\n3\n4\n5\n", ""}) {
    files.push_back(folder / str("part", files.size()));
    std::ofstream(files.back()) << lines;
  }
  const StagePtr dataset = without_spec(make_text_line_stage(make_slices(Element({Strings(files)})), {}));
  const auto outcomes = run_workers(3, [&](int worker) {
    return distributed_by_plan(plan_input(dataset, AutoShardPolicy::File, Assignment::TensorFlow, {3, 1, worker}));
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_FALSE(outcome.error) << outcome.error->what();
    EXPECT_EQ(outcome.steps.size(), outcomes[1].steps.size());
    EXPECT_GT(outcome.steps.size(), 2u);
  }
  for (const int empty : {0, 2}) {
    for (const auto& values : outcomes[static_cast<std::size_t>(empty)].steps) {
      EXPECT_EQ(values.at(0).tensor(0).scalar_type(), at::kLong);
      EXPECT_EQ(values.at(0).tensor(1).scalar_type(), at::kDouble);
      EXPECT_EQ(values.at(0).tensor(1).sizes(), (std::vector<std::int64_t>{0, 2}));
    }
  }
}

TEST(WorkersWithoutData, ThatCannotBeHelpedStopAllInTheSameStep) {
  const auto outcomes = run_workers(3, [&](int worker) {
    return distributed_pipelines({without_spec(make_range(0, worker == 1 ? 0 : 5))}, {3, 1, worker}, false);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.steps.empty());
    for (const auto& error : {outcome.error, outcome.again}) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), Code::FailedPrecondition);
      EXPECT_EQ(error->number(), errors::kSignature);
      EXPECT_EQ(error->text().what, outcomes[0].error->text().what);
      EXPECT_EQ(error->text().help, outcomes[0].error->text().help);
      EXPECT_NE(error->text().help.find("`spec`"), std::string::npos);
      EXPECT_NE(error->text().where.find("step 0"), std::string::npos) << error->what();
    }
  }
}

TEST(WorkersWithoutData, EndWhereNobodyHasAny) {
  for (const Outcome& outcome : run_workers(2, [&](int worker) {
         return distributed_pipelines({without_spec(make_range(0, 0))}, {2, 1, worker}, false);
       })) {
    EXPECT_TRUE(outcome.steps.empty());
    EXPECT_FALSE(outcome.error) << outcome.error->what();
    EXPECT_FALSE(outcome.again);
  }
}

/// Rows of 1, 2 or 3 numbers, and that number, padded; the spec leaves the length open.
StagePtr padded_rows(std::int64_t rows, std::int64_t size, bool drop_remainder) {
  const StagePtr numbers = make_map(
      make_range(0, rows),
      [](Element& element) {
        const std::int64_t length = element.tensor(0).item().toLong() % 3 + 1;
        element = Element({at::full({length}, 1.0), at::full({}, length)});
      },
      ElementSpec{{{ComponentSpec::tensor(at::kDouble, PartialShape{PartialShape::kUnknown}),
                    ComponentSpec::tensor(at::kLong, PartialShape({}))}}},
      MapOptions{});
  return make_padded_batch(numbers, size, PaddedBatchOptions{.drop_remainder = drop_remainder});
}

using Shape = std::vector<std::int64_t>;

TEST(EmptyBatches, HaveNoRowsAlsoWhereTheirNumberIsKnownAndAnotherDimensionIsNot) {
  for (const bool drop : {true, false}) {
    DistributedInput input = distributed_pipelines({padded_rows(6, 2, drop)}, {1, 2, 0}, false);
    EXPECT_EQ(to_string(input.spec()), "PerReplica x 2 of (float64[?, ?], int64[?])");
    DistributedCursor cursor(std::make_shared<const DistributedInput>(input));
    ASSERT_TRUE(cursor.next());
    const auto last = cursor.next();
    ASSERT_TRUE(last);
    EXPECT_EQ(last->at(0).tensor(0).sizes(), (Shape{2, 3}));
    EXPECT_EQ(last->at(1).tensor(0).sizes(), (Shape{0, 0})) << "unknown dimensions are 0";
    EXPECT_EQ(last->at(1).tensor(1).sizes(), (Shape{0}));
    EXPECT_FALSE(cursor.next());
  }
  EXPECT_EQ(to_string(distributed_pipelines({padded_rows(6, 2, true)}, {1, 1, 0}, false).spec()),
            "(float64[2, ?], int64[2])")
      << "one replica has data or there is no step";
}

TEST(EmptyBatches, OfRebatchHaveNoRows) {
  const auto shapes = [](std::vector<std::int64_t> sizes) {
    const StagePtr pairs = make_batch(make_padded_batch(make_range(0, 15), 2, PaddedBatchOptions{}), 3,
                                      BatchOptions{.drop_remainder = true});
    std::vector<Shape> seen;
    PipelineIterator iterator(make_rebatch(pairs, std::move(sizes), false), kContext);
    for (Element element; iterator.next(element);) seen.push_back(element.tensor(0).sizes().vec());
    return seen;
  };
  EXPECT_EQ(shapes({2, 0}), (std::vector<Shape>{{2, 2}, {0, 0}, {2, 2}, {0, 0}, {2, 2}, {0, 0}}));
  EXPECT_EQ(shapes({0, 4}), (std::vector<Shape>{{0, 0}, {4, 2}, {0, 0}, {2, 2}}));
}

TEST(EmptyBatches, OfAWorkerWithoutRowsFailAsTheRowsOfOthersDo) {
  const StagePtr failing = make_map(
      make_range(0, 8), [](Element&) { throw std::runtime_error("not this one"); }, ElementSpec::unknown(1),
      MapOptions{});
  const StagePtr batches = make_batch(failing, 2);
  for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Off}) {
    for (const int worker : {0, 1, 2}) {
      const auto input = input_of(plan_input(batches, policy, Assignment::ByReplica, {3, 1, worker}), 0);
      DistributedCursor cursor(input);
      for (int call = 0; call < 3; ++call) {
        try {
          cursor.next();
          ADD_FAILURE() << "worker " << worker << " has a step";
        } catch (const std::runtime_error& error) {
          EXPECT_NE(std::string(error.what()).find("not this one"), std::string::npos)
              << "worker " << worker << ", call " << call << ": " << error.what();
        }
        EXPECT_EQ(cursor.state().consumed, 0) << "worker " << worker;
      }
    }
  }
}

TEST(EmptyBatches, ShareNoMemory) {
  const auto scalars = make_map(
      make_range(0, 4),
      [](Element& element) {
        element = Element({at::full({2}, 1.0), at::full({}, 5.0)});
      },
      ElementSpec::unknown(2), MapOptions{});
  DistributedInput input = distributed_pipelines({scalars}, {1, 3, 0}, false);
  input.buffer_size = 0;
  DistributedCursor cursor(std::make_shared<const DistributedInput>(input));
  ASSERT_TRUE(cursor.next());
  const auto last = cursor.next();
  ASSERT_TRUE(last);
  for (const std::size_t k : {1u, 2u}) EXPECT_EQ(last->at(k).tensor(1).item().toDouble(), 0.0);
  last->at(1).tensor(1).fill_(7);
  EXPECT_EQ(last->at(2).tensor(1).item().toDouble(), 0.0);
}

TEST(UnequalRows, AreToldOnceByBothAssignments) {
  const auto batched = [](std::int64_t rows, std::int64_t size) { return make_batch(make_range(0, rows), size); };
  const StagePtr zipped = make_zip(std::vector<StagePtr>{batched(20, 4), batched(10, 2)});
  for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
    for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Off}) {
      const InputPlan plan = plan_input(zipped, policy, assignment, {2, 1, 0});
      ASSERT_EQ(plan.split.rule, assignment == Assignment::ByReplica ? SplitRule::Even : SplitRule::CeilSplit);
      const auto input = input_of(plan, 0, agree_alone);
      const LoggedLines log;
      for (int pass = 0; pass < 2; ++pass) {
        DistributedCursor cursor(input);
        while (const auto values = cursor.next()) {
          EXPECT_NE(values->at(0).tensor(0).size(0), values->at(0).tensor(1).size(0)) << "each by itself";
        }
      }
      EXPECT_EQ(log.count("the components of a batch have 4 and 2 rows"), 1) << lockstep::to_string(assignment);
    }
  }
}

}  // namespace
}  // namespace lockstep::data
