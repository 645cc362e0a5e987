#include "lockstep/train/checkpoint/keeping.h"

#include <gtest/gtest.h>

#include <limits>

#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/checkpoint/folder_lock.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::train {
namespace {

using detail::KeepPlan;
using Steps = std::vector<std::int64_t>;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

TEST(KeepPlan, IsAFunctionOfStepsAndScores) {
  const struct {
    const char* name;
    std::vector<double> scores;  // of the steps 10, 20, ...
    KeepOptions options;
    Steps remove, leave_optimizer;
  } rows[] = {
      {"nothing", {}, {}, {}, {}},
      {"fewer than may stay", {kNone, kNone}, {.keep = 3}, {}, {}},
      {"the newest stay", {kNone, kNone, kNone, kNone}, {.keep = 3}, {10}, {}},
      {"only the newest", {kNone, kNone, kNone}, {.keep = 1}, {10, 20}, {}},
      {"all", {kNone, kNone, kNone}, {.keep = 0}, {}, {}},
      {"the best stays too", {3, 1, 2, 4}, {.keep = 1, .best_metric = "val_loss"}, {10, 30}, {}},
      {"the highest is best",
       {3, 1, 5, 4, 2},
       {.keep = 1, .best_metric = "a", .highest_is_best = true},
       {10, 20, 40},
       {}},
      {"two of the best", {3, 1, 2, 4, 5}, {.keep = 1, .best_metric = "val_loss", .keep_best = 2}, {10, 40}, {}},
      {"the best is among the newest", {3, 2, 1}, {.keep = 2, .best_metric = "val_loss"}, {10}, {}},
      {"of equals the older", {2, 1, 1, 4}, {.keep = 1, .best_metric = "val_loss"}, {10, 30}, {}},
      {"without a score it is not the best",
       {kNone, 5, kNone, kNone},
       {.keep = 1, .best_metric = "val_loss"},
       {10, 30},
       {}},
      {"scores alone keep nothing", {1, 2, 3}, {.keep = 1}, {10, 20}, {}},
      {"the optimizer's state of two", {1, 1, 1, 1}, {.keep = 0, .keep_optimizer = 2}, {}, {10, 20}},
      {"what goes is not made smaller", {1, 1, 1, 1}, {.keep = 3, .keep_optimizer = 2}, {10}, {20}},
      {"the best without the optimizer's",
       {1, 2, 3, 4},
       {.keep = 2, .best_metric = "x", .keep_optimizer = 2},
       {20},
       {10}},
  };
  for (const auto& row : rows) {
    for (const bool has_nan : {false, true}) {  // a score that is not a number is none
      std::vector<detail::KeptCheckpoint> all;
      for (const double score : row.scores) {
        all.push_back({static_cast<std::int64_t>(all.size() + 1) * 10});
        if (score == score || has_nan) all.back().score = score;
      }
      const KeepPlan plan = plan_keeping(all, row.options);
      EXPECT_EQ(plan.remove, row.remove) << row.name;
      EXPECT_EQ(plan.leave_optimizer, row.leave_optimizer) << row.name;
    }
  }
}

TEST(KeepOptions, RefuseWhatCannotBeKept) {
  const std::pair<KeepOptions, std::string> rows[] = {
      {{.keep = -1}, "keep must be >= 0, got -1"},
      {{.keep_best = 0}, "keep_best must be >= 1, got 0"},
      {{.keep_optimizer = 1}, "keep_optimizer must be >= 2, or 0 for all, got 1"},
      {{.keep_optimizer = -2}, "keep_optimizer must be >= 2"}};
  for (const auto& [options, text] : rows)
    expect_error([&refused = options] { require_valid(refused); }, Code::InvalidArgument, errors::kBadOption, {text});
  require_valid(KeepOptions{});
}

TEST(SaveInterval, IsOverAfterStepsOrTime) {
  const struct {
    SaveInterval interval;
    std::int64_t last_step, step;
    double last_seconds, seconds;
    bool due;
  } rows[] = {{{}, 0, 1000, 0, 1e9, false},
              {{.steps = 10}, 0, 9, 0, 0, false},
              {{.steps = 10}, 0, 10, 0, 0, true},
              {{.steps = 10}, 10, 10, 0, 0, false},
              {{.steps = 10}, 10, 19, 0, 0, false},
              {{.steps = 10}, 15, 20, 0, 0, true},  // a checkpoint in between moves none of the others
              {{.steps = 10}, 15, 45, 0, 0, true},
              {{.steps = 1}, 4, 5, 0, 0, true},
              {{.seconds = 60}, 0, 1, 100, 159.9, false},
              {{.seconds = 60}, 0, 1, 100, 160, true},
              {{.seconds = 60}, 1, 1, 100, 160, false},  // no step since: nothing new to save
              {{.steps = 10, .seconds = 60}, 0, 3, 0, 60, true},
              {{.steps = 10, .seconds = 60}, 0, 10, 0, 1, true}};
  for (const auto& row : rows)
    EXPECT_EQ(is_due(row.interval, row.last_step, row.step, row.last_seconds, row.seconds), row.due)
        << row.interval.steps << ' ' << row.last_step << ' ' << row.step << ' ' << row.seconds;
}

TEST(FolderLock, IsHeldByOneAtATime) {
  const TemporaryFolder folder;
  const std::string path = folder / "a/b";
  {
    const detail::FolderLock first(path);
    expect_error([&] { detail::FolderLock{path}; }, Code::FailedPrecondition, errors::kCheckpoint,
                 {"another checkpoint manager writes to " + path, "process " + std::to_string(::getpid())});
    const detail::FolderLock other(folder / "c");
  }
  const detail::FolderLock again(path);
}

}  // namespace
}  // namespace lockstep::train
