// Reports of meters about distributed iterators.
#include <gtest/gtest.h>

#include <string>

#include "lockstep/data/stage.h"
#include "lockstep/data/stage_meter.h"
#include "lockstep/data/stages/stages.h"
#include "tests/support/distributed_steps.h"

namespace lockstep::data {
namespace {

StagePtr mapped(const StagePtr& input) {
  return make_map(
      input, [](Element&) {}, ElementSpec::unknown(1),
      MapOptions{.spec = [](const ElementSpec& spec) { return spec; }});
}

StagePtr in_batches(const StagePtr& rows, std::int64_t size) { return make_batch(rows, size); }

std::string names_in(const StageReport& report) {
  std::string text;
  for (const StageReportLine& line : report.stages) text += std::string(2 * line.depth, ' ') + line.name + "\n";
  return text;
}

/// Reads a pass and returns its number of rows.
std::int64_t rows_of_pass(const DistributedInputPtr& input, const std::shared_ptr<StageMeter>& meter) {
  DistributedCursor cursor(input, {.meter = meter});
  std::int64_t rows = 0;
  for (const Step& step : read_all(cursor)) {
    for (const Rows& mine : step) rows += std::ssize(mine);
  }
  return rows;
}

TEST(DistributedReport, HasALineForTheIteratorAboveThoseOfItsStages) {
  for (const int buffer : {0, 2}) {
    const auto input = input_of(
        plan_input(in_batches(mapped(make_range(0, 42)), 8), AutoShardPolicy::Auto, Assignment::ByReplica, {1, 2, 0}),
        buffer);
    const auto meter = std::make_shared<StageMeter>();
    for (int pass = 1; pass <= 2; ++pass) {
      EXPECT_EQ(rows_of_pass(input, meter), 42);
      const StageReport report = meter->report();
      EXPECT_EQ(names_in(report), "distribute #1\n  batch #1\n    map #1\n      range #1\n");
      EXPECT_EQ(report.stages[0].elements, 6 * pass);
      EXPECT_EQ(report.stages[0].rows, 42 * pass);
      EXPECT_EQ(report.stages[1].rows, 42 * pass);
      EXPECT_EQ(report.stages[2].elements, 42 * pass);
      EXPECT_GT(report.stages[0].rows_per_s, 0);
      EXPECT_GT(report.stages[0].waiting_s, 0);
      EXPECT_EQ(report.stages[0].buffer_fill >= 0, buffer > 0);
      EXPECT_EQ(report.stages[0].description, "distribute over 2 replicas");
      EXPECT_FALSE(report.hint.empty());
      EXPECT_NE(to_string(report).find("distribute #1"), std::string::npos);
    }
  }
}

TEST(DistributedReport, ChangesNoElement) {
  const StagePtr dataset = in_batches(make_shuffle(make_range(0, 42), 10), 8);
  const auto input = input_of(plan_input(dataset, AutoShardPolicy::Off, Assignment::ByReplica, {1, 3, 0}), 1);
  const PassOptions fifth{.epoch = 5};
  DistributedCursor plain(input, fifth);
  DistributedCursor measured(input, {.epoch = 5, .meter = std::make_shared<StageMeter>()});
  const Steps steps = read_all(plain);
  EXPECT_EQ(read_all(measured), steps);
  DistributedCursor taken(input, fifth);
  taken.next();
  const auto meter = std::make_shared<StageMeter>();
  DistributedCursor resumed = resume_cursor(input, taken.state(), meter);
  EXPECT_EQ(read_all(resumed), Steps(steps.begin() + 1, steps.end()));
  EXPECT_EQ(meter->report().stages.front().elements, std::ssize(steps) - 1);
}

struct ReportCase {
  const char* name;
  StagePtr dataset;
  AutoShardPolicy policy;
  Assignment assignment;
  const char* lines;
};

TEST(DistributedReport, OfOneOfSeveralWorkersIsAboutItsOwnPipeline) {
  const auto filtered = [] { return make_filter(make_range(0, 42), [](const Element&) { return true; }); };
  const ReportCase kCases[] = {
      // Other workers' rows are skipped below the batch.
      {"known rows", in_batches(mapped(make_range(0, 42)), 8), AutoShardPolicy::Data, Assignment::ByReplica,
       "distribute #1\n  map #1\n    range #1\n"},
      // Cached rows are not a stage.
      {"unknown rows", in_batches(mapped(filtered()), 8), AutoShardPolicy::Data, Assignment::ByReplica,
       "distribute #1\n  map #1\n    filter #1\n      range #1\n"},
      // Looking up numbers of rows is not measured.
      {"batches again", make_repeat(in_batches(filtered(), 8), 2), AutoShardPolicy::Off, Assignment::ByReplica,
       "distribute #1\n  repeat #1\n    batch #1\n      filter #1\n        range #1\n"},
      {"TensorFlow", in_batches(mapped(make_range(0, 42)), 8), AutoShardPolicy::Data, Assignment::TensorFlow,
       "distribute #1\n  shard #1\n    ceil_split #1\n      batch #1\n        map #1\n          range #1\n"},
  };
  for (const ReportCase& c : kCases) {
    const auto input = input_of(plan_input(c.dataset, c.policy, c.assignment, {3, 1, 1}), 1);
    const auto meter = std::make_shared<StageMeter>();
    std::int64_t rows = 0;
    for (int pass = 0; pass < 2; ++pass) {
      rows += rows_of_pass(input, meter);
      EXPECT_EQ(names_in(meter->report()), c.lines) << c.name;
    }
    EXPECT_EQ(meter->report().stages[0].rows, rows) << c.name;
    EXPECT_GT(rows, 0) << c.name;
  }
}

TEST(DistributedReport, HasThePipelinesOfAllReplicas) {
  DistributedInput made =
      distributed_pipelines({in_batches(make_range(0, 9), 2), in_batches(make_range(0, 4), 2)}, {1, 2, 0},
                            /*one_for_each=*/true);
  const auto input = std::make_shared<const DistributedInput>(std::move(made));
  const auto meter = std::make_shared<StageMeter>();
  EXPECT_EQ(rows_of_pass(input, meter), 13);
  const StageReport report = meter->report();
  ASSERT_EQ(report.stages.size(), 3u) << to_string(report);
  EXPECT_EQ(report.stages[0].rows, 13);
  EXPECT_EQ(report.stages[1].rows + report.stages[2].rows, 13);
}

TEST(DistributedReport, SaysWhatToDo) {
  const auto hint = [](bool buffered, double cutting_s, double reading_s, double waited_s) {
    StageReport report{.seconds = 1};
    report.stages.push_back(
        {.name = "distribute #1", .kind = "distribute", .busy_s = cutting_s, .waiting_s = waited_s});
    if (buffered) report.stages.front().buffer_fill = 0.5;
    report.stages.push_back({.name = "batch #1", .kind = "batch", .depth = 1, .busy_s = reading_s});
    return hint_for(report, 4);
  };
  EXPECT_EQ(hint(false, 0, 1, 1), "bound by batch #1: choose a per_replica_buffer_size of 1 or more");
  EXPECT_EQ(hint(true, 0, 1, 1), "bound by batch #1");
  EXPECT_EQ(hint(true, 1, 0, 1), "bound by distribute #1");
  EXPECT_NE(hint(false, 0.1, 0.1, 1).find("choose a per_replica_buffer_size"), std::string::npos);
  EXPECT_NE(hint(true, 1, 0, 0).find("the consumer is the bound"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::data
