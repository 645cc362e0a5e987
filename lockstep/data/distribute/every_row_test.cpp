// Every row of a source arrives exactly once, whatever the source, the policy, the assignment and the cluster.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/worker_shards.h"
#include "lockstep/data/files/files.h"
#include "lockstep/data/torch_dataset.h"
#include "tests/support/distributed_steps.h"
#include "tests/support/logged_lines.h"

namespace lockstep::data {
namespace {

/// The numbers from 0 on, as a dataset of `torch::data` returns them.
struct TorchNumbers {
  struct Example {
    at::Tensor data;
  };
  std::size_t rows;
  std::optional<std::size_t> size() const { return rows; }
  Example get(std::size_t row) const { return {at::full({}, static_cast<std::int64_t>(row), at::kLong)}; }
};

/// Datasets of the rows 0, 1, 2, ... of every kind of source.
struct Source {
  const char* name;
  Dataset<at::Tensor> rows;
};

std::vector<Source> sources(std::int64_t rows, const Folder& folder) {
  std::vector<std::string> files;
  for (std::int64_t begin = 0; begin < rows; begin += 4) {
    files.push_back(folder / str("rows_", rows, '_', begin));
    std::ofstream file(files.back());
    for (std::int64_t row = begin; row < std::min(begin + 4, rows); ++row) file << row << '\n';
  }
  const auto generate = [rows] {
    return [rows, next = std::int64_t{0}]() mutable -> std::optional<at::Tensor> {
      if (next == rows) return std::nullopt;
      return at::full({}, next++, at::kLong);
    };
  };
  const auto number_in = [](const std::string& line) { return at::full({}, std::stoll(line), at::kLong); };
  const auto range_of_two = [rows](const at::Tensor& first) {
    const std::int64_t begin = first.item<std::int64_t>();
    return range(begin, std::min(begin + 2, rows));
  };
  return {{"range", range(rows)},
          {"slices", from_tensor_slices(at::arange(rows))},
          {"torch dataset", from_torch_dataset(TorchNumbers{static_cast<std::size_t>(rows)})},
          {"generator", from_generator(generate, {.replayable = true})},
          {"files", text_line_dataset(from_tensor_slices(files)).map(number_in)},
          {"flat_map", range(0, rows, 2).flat_map(range_of_two)}};
}

/// Batches made in every way that the rules distinguish.
std::vector<std::pair<const char*, Dataset<at::Tensor>>> batched(const Dataset<at::Tensor>& rows, std::int64_t size) {
  const auto same = [](const at::Tensor& x) { return x; };
  return {{"batch", rows.batch(size)},
          {"batches of unknown size", rows.batch(size).map(same)},
          {"padded_batch", rows.padded_batch(size)},
          {"rebatch", rows.batch(3).rebatch(size)},
          {"rows computed before", rows.map(same).batch(size).prefetch(1)}};
}

using Counts = std::map<std::int64_t, int>;

void count(const Steps& steps, Counts& counts) {
  for (const Step& step : steps)
    for (const Rows& mine : step)
      for (const std::int64_t row : mine) ++counts[row];
}

/// How often each row arrives on some replica; none if a plan is rejected.
std::optional<Counts> rows_seen(const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment, int workers,
                                int replicas) {
  const auto plan = [&](int worker) { return plan_input(dataset, policy, assignment, {workers, replicas, worker}); };
  Counts counts;
  try {
    const auto totals = totals_of_workers(workers, [&](int worker) { return plan(worker).make_source(kContext); });
    for (int worker = 0; worker < workers; ++worker) {
      DistributedCursor cursor(input_of(plan(worker), 0, agreement_by(std::make_shared<KnownTotals>(totals, 0))));
      count(read_all(cursor), counts);
    }
  } catch (const NotFound&) {
    return std::nullopt;  // AutoShardPolicy::File for a source without files
  } catch (const InvalidArgument&) {
    return std::nullopt;  // fewer files than workers
  }
  return counts;
}

Counts each_row(std::int64_t rows, int times) {
  Counts counts;
  for (std::int64_t row = 0; row < rows; ++row) counts[row] = times;
  return counts;
}

constexpr AutoShardPolicy kPolicies[] = {AutoShardPolicy::Auto, AutoShardPolicy::File, AutoShardPolicy::Data,
                                         AutoShardPolicy::Off, AutoShardPolicy::Hint};
constexpr std::pair<int, int> kClusters[] = {{1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 2}, {3, 1}};

TEST(EveryRow, ArrivesOnceOrOnEveryWorkerThatReadsEverything) {
  const LogSeverityScope quiet(Severity::Silent);
  const Folder folder("every_row");
  int checked = 0, refused = 0;
  for (const std::int64_t rows : {1, 9, 26}) {
    for (const Source& source : sources(rows, folder)) {
      for (const std::int64_t size : {4, 10}) {
        for (const auto& [batching, dataset] : batched(source.rows, size)) {
          for (const AutoShardPolicy policy : kPolicies) {
            for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
              for (const auto& [workers, replicas] : kClusters) {
                const auto seen = rows_seen(dataset.stage(), policy, assignment, workers, replicas);
                const bool reads_all = assignment == Assignment::TensorFlow && workers > 1 &&
                                       (policy == AutoShardPolicy::Off || policy == AutoShardPolicy::Hint);
                if (!seen) {
                  EXPECT_GT(workers, 1);
                  ++refused;
                  continue;
                }
                ++checked;
                ASSERT_EQ(*seen, each_row(rows, reads_all ? workers : 1))
                    << source.name << " of " << rows << " rows, " << batching << " of " << size << ", "
                    << lockstep::to_string(policy) << ", " << lockstep::to_string(assignment) << ", " << workers << "x"
                    << replicas;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(checked, 8000);
  EXPECT_LT(refused, checked / 4);
}

TEST(EveryRow, OfAFunctionsBatchesArrivesAlsoWhereTheyAreAllOfOneKnownSize) {
  const auto count_of = [](const StagePtr& batches, int replicas, bool one_for_each, Assignment assignment) {
    const std::vector<StagePtr> pipelines(one_for_each ? static_cast<std::size_t>(replicas) : 1, batches);
    DistributedInput input = distributed_pipelines(pipelines, {1, replicas, 0}, one_for_each, assignment);
    DistributedCursor cursor(std::make_shared<const DistributedInput>(std::move(input)));
    Counts counts;
    count(read_all(cursor), counts);
    return counts;
  };
  for (const int replicas : {1, 2, 3}) {
    for (const std::int64_t batches : {0, 1, 5, 6}) {
      const StagePtr whole = range(2 * batches).batch(2, {.drop_remainder = true}).stage();
      EXPECT_EQ(count_of(whole, replicas, false, Assignment::ByReplica), each_row(2 * batches, 1));
      EXPECT_EQ(count_of(whole, replicas, true, Assignment::ByReplica), each_row(2 * batches, replicas));
      const LoggedLines log;
      const std::int64_t steps = batches / replicas;
      EXPECT_EQ(count_of(whole, replicas, false, Assignment::TensorFlow), each_row(2 * steps * replicas, 1));
      EXPECT_EQ(log.count("the last step is left out"), batches % replicas == 0 ? 0 : 1);
    }
  }
}

TEST(EveryRow, ThatIsAScalarIsLostWithAWarningWhereNotAllReplicasHaveOne) {
  DistributedCursor cursor(std::make_shared<const DistributedInput>(
      distributed_pipelines({range(5).stage()}, {1, 3, 0}, /*one_for_each=*/false)));
  const LoggedLines log;
  int steps = 0;
  while (cursor.next()) ++steps;
  EXPECT_EQ(steps, 1) << "a third number would be made up";
  EXPECT_EQ(log.count("only 2 of 3 replicas have an element"), 1);
}

}  // namespace
}  // namespace lockstep::data
