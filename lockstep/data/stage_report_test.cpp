#include <gtest/gtest.h>

#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

TEST(StageReports, CountElementsAndRows) {
  const auto meter = std::make_shared<StageMeter>();
  auto it = range(200).map([](at::Tensor x) { return x; }).batch(10).prefetch(2).iterator({.meter = meter});
  while (it.next()) {
  }
  const StageReport report = meter->report();
  ASSERT_EQ(report.stages.size(), 4u) << to_string(report);
  EXPECT_EQ(report.stages[1].elements, 20) << to_string(report);
  EXPECT_EQ(report.stages[1].rows, 200) << to_string(report);
  EXPECT_EQ(report.stages[2].elements, 200) << to_string(report);
  EXPECT_GE(report.stages[0].buffer_fill, 0);
}

TEST(StageReports, DoNotTakeAPipelineForAnEarlierOneAtTheSameAddress) {
  const auto meter = std::make_shared<StageMeter>();
  constexpr int kPipelines = 40;
  for (int i = 0; i < kPipelines; ++i) {
    const auto numbers = range(10);
    const auto batches = i % 2 == 0 ? numbers.map([](at::Tensor x) { return x; }).batch(2)
                                    : numbers.filter([](const at::Tensor&) { return true; }).batch(2);
    auto it = batches.iterator({.meter = meter});
    while (it.next()) continue;
  }
  const StageReport report = meter->report();
  ASSERT_EQ(report.stages.size(), 3u * kPipelines) << to_string(report);
  for (std::size_t i = 0; i < report.stages.size(); ++i) {
    const StageReportLine& line = report.stages[i];
    EXPECT_EQ(line.kind, i % 3 == 0 ? "batch" : i % 3 == 2 ? "range" : i % 6 == 1 ? "map" : "filter") << i;
    EXPECT_EQ(line.elements, i % 3 == 0 ? 5 : 10) << line.name;
  }
}

TEST(StageReports, MeasuringChangesNoElements) {
  const auto build = [] { return range(30).shuffle(30); };
  const auto measured = build();
  measured.to_vector();
  const auto plain = build();
  plain.to_vector();
  EXPECT_EQ(rows_of(measured.iterator({.meter = std::make_shared<StageMeter>()})), rows_of(plain.iterator()));
}

TEST(StageReports, NameMapsAsTheUserDoes) {
  const auto same = [](at::Tensor x) { return x; };
  const auto meter = std::make_shared<StageMeter>();
  const auto dataset = range(20)
                           .map(same, {.name = "read"})
                           .map(same, {.parallel_calls = 2, .name = "decode"})
                           .map_with_random([](at::Tensor x, RowRandom&) { return x; });
  for (auto it = dataset.iterator({.meter = meter}); it.next();) continue;
  const StageReport report = meter->report();
  ASSERT_EQ(report.stages.size(), 4u);
  EXPECT_EQ(report.stages[2].name, "map #1 (read)");
  EXPECT_EQ(report.stages[1].name, "map #2 (decode)");
  EXPECT_EQ(report.stages[1].parallel_calls, 2);
  EXPECT_EQ(report.stages[0].name, "map #3");
  EXPECT_TRUE(contains(to_string(report), "map #2 (decode)")) << to_string(report);
  EXPECT_EQ(dataset.to_string(),
            "map_with_random\n└─ map(decode, 2 parallel calls)\n   └─ map(read)\n      └─ range(20)\n");
}

/// A chain of stages, the last one first, as a report of 10 seconds.
struct Measured {
  std::string kind;
  double busy_s;
  int parallel_calls = 0;
  std::string name = "";
};
StageReport report_of(const std::vector<Measured>& stages, double waiting_s) {
  StageReport report{.seconds = 10};
  for (const Measured& stage : stages) {
    StageReportLine line;
    line.kind = stage.kind;
    line.name = stage.name.empty() ? stage.kind + " #1" : stage.name;
    line.depth = static_cast<int>(report.stages.size());
    line.busy_s = stage.busy_s;
    line.parallel_calls = stage.parallel_calls;
    line.waiting_s = report.stages.empty() ? waiting_s : 0;
    report.stages.push_back(line);
  }
  return report;
}

TEST(Hints, NameWhatHoldsUpTheConsumer) {
  struct Case {
    const char* name;
    std::vector<Measured> stages;
    double waiting_s;
    int cores;
    std::string hint;
  };
  const std::vector<Case> table{
      {"nothing", {}, 0, 2, "nothing was read"},
      {"a slow consumer",
       {{"prefetch", 0}, {"map", 9}},
       0.6,
       8,
       "the consumer is the bound: it waited 6 % of the time"},
      {"a slow map", {{"prefetch", 0}, {"batch", 1}, {"map", 9}}, 9, 8, "bound by map #1: try 2 parallel calls"},
      {"by its name",
       {{"prefetch", 0}, {"map", 9, 0, "map #2 (decode)"}},
       9,
       8,
       "bound by map #2 (decode): try 2 parallel calls"},
      {"parallel calls", {{"parallel_map", 19, 2, "map #2"}}, 9, 8, "bound by map #2: try 4 parallel calls"},
      {"no more than cores", {{"parallel_map", 29, 3, "map #2"}}, 9, 4, "bound by map #2: try 4 parallel calls"},
      {"as many calls as cores",
       {{"parallel_map", 38, 4, "map #1"}},
       9,
       4,
       "bound by map #1: it uses all that 4 cores can give, make the function faster"},
      {"more calls than cores",
       {{"parallel_map", 78, 8, "map #1"}},
       9,
       4,
       "bound by map #1: it uses all that 4 cores can give, make the function faster"},
      {"one core",
       {{"prefetch", 0}, {"map", 9}},
       9,
       1,
       "bound by map #1: it uses all that 1 core can give, make the function faster"},
      {"calls that share the work are not the bound",
       {{"prefetch", 0}, {"filter", 8}, {"parallel_map", 12, 4}},
       8,
       4,
       "bound by filter #1"},
      {"no prefetch", {{"batch", 1}, {"csv", 6}}, 7, 8, "bound by csv #1: put prefetch(2) at the end"},
      {"a source behind a prefetch", {{"prefetch", 0}, {"tfrecord", 9}}, 9, 8, "bound by tfrecord #1"},
      {"a flat_map behind a prefetch",
       {{"prefetch", 0}, {"flat_map", 9}},
       9,
       8,
       "bound by flat_map #1: try interleave with parallel calls"},
      {"idle stages",
       {{"prefetch", 0}, {"batch", 0.01}, {"map", 0.02}},
       5,
       8,
       "no single stage is the bound: the consumer waited 50 % of the time; parallel calls or a larger prefetch may "
       "help"},
      {"waiting at the start only",
       {{"prefetch", 0}, {"map", 3}},
       1.2,
       8,
       "no single stage is the bound: the consumer waited 12 % of the time; parallel calls or a larger prefetch may "
       "help"},
      {"many equal stages",
       {{"batch", 1}, {"map", 1.1}, {"filter", 1}, {"map", 1}},
       4.1,
       8,
       "no single stage is the bound: the consumer waited 41 % of the time; put prefetch(2) at the end"},
      {"half of a short wait on the consumer's thread",
       {{"batch", 0.5}, {"map", 1.5}},
       2,
       8,
       "bound by map #1: try 2 parallel calls"},
  };
  for (const Case& c : table) EXPECT_EQ(hint_for(report_of(c.stages, c.waiting_s), c.cores), c.hint) << c.name;
}

TEST(Hints, AreInTheReport) {
  const auto meter = std::make_shared<StageMeter>();
  EXPECT_EQ(meter->report().hint, "nothing was read");
  for (auto it = range(20).batch(4).iterator({.meter = meter}); it.next();) continue;
  EXPECT_FALSE(meter->report().hint.empty());
  EXPECT_NE(meter->report().hint, "nothing was read");
}

}  // namespace
}  // namespace lockstep::data
