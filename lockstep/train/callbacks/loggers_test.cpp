#include "lockstep/train/callbacks/loggers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/train/logs/curves.h"
#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using train::CallbackPtr;
using train::CurvePoint;

/// The points of each curve in a log, by "run/name".
std::map<std::string, std::vector<CurvePoint>> curves_in(const std::string& path) {
  std::map<std::string, std::vector<CurvePoint>> curves;
  for (const train::Curve& curve : train::read_curves(path, "r")) curves[curve.run + "/" + curve.name] = curve.points;
  return curves;
}

struct Kind {
  const char* name;
  CallbackPtr (*make)(const std::string& path, std::int64_t every_steps);
  const char *epoch_loss, *epoch_val_loss, *batch_loss;  ///< the curves that it writes
};
const Kind kKinds[] = {
    {"csv",
     [](const std::string& path, std::int64_t every_steps) {
       return train::csv_logger({.path = path, .every_steps = every_steps});
     },
     "r/loss", "r/val_loss", "r/loss"},
    {"jsonl",
     [](const std::string& path, std::int64_t every_steps) {
       return train::json_lines_logger({.path = path, .every_steps = every_steps});
     },
     "r/loss", "r/val_loss", "r/loss"},
    {"events",
     [](const std::string& path, std::int64_t every_steps) {
       return train::tensor_board({.folder = path, .every_steps = every_steps});
     },
     "r/train/epoch_loss", "r/validation/epoch_loss", "r/steps/batch_loss"},
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class Logger : public testing::TestWithParam<Kind> {
 protected:
  std::string path() const { return folder_ / (std::string("log.") + GetParam().name); }
  CallbackPtr make(std::int64_t every_steps = 0) const { return GetParam().make(path(), every_steps); }

  /// Trains with the logger; `at_epoch_end` is called after it.
  train::History fit(const CallbackPtr& logger, int initial_epoch, int epochs,
                     const std::function<void(int epoch)>& at_epoch_end = {}) const {
    Training t(2);
    const auto after = train::lambda({.epoch_ends = [&](const train::Training& its, const train::Logs&) {
      if (at_epoch_end) at_epoch_end(its.epoch);
      return train::Decision{};
    }});
    return t.fit(known_batches(), {.epochs = epochs,
                                   .validation = known_batches(9, 4),
                                   .callbacks = {logger, after},
                                   .initial_epoch = initial_epoch});
  }

  const TemporaryFolder folder_;
};

TEST_P(Logger, WritesTheValuesOfEachEpoch) {
  const train::History history = fit(make(), 0, 3);
  const auto curves = curves_in(path());
  for (const auto& [name, of] :
       std::map<std::string, std::string>{{GetParam().epoch_loss, "loss"}, {GetParam().epoch_val_loss, "val_loss"}}) {
    const std::vector<CurvePoint>& points = curves.at(name);
    ASSERT_EQ(points.size(), 3u) << name;
    for (int epoch = 0; epoch < 3; ++epoch) {
      const CurvePoint& point = points[static_cast<std::size_t>(epoch)];
      EXPECT_EQ(point.x, epoch) << name;
      EXPECT_FLOAT_EQ(static_cast<float>(point.y), static_cast<float>(history.of(of)[static_cast<std::size_t>(epoch)]));
    }
  }
}

TEST_P(Logger, WritesEverySoManySteps) {
  fit(make(4), 0, 2);  // 12 steps
  const std::vector<CurvePoint> points = curves_in(path()).at(GetParam().batch_loss);
  ASSERT_EQ(points.size(), 3u);
  for (std::size_t k = 0; k < 3; ++k) EXPECT_EQ(points[k].x, 4.0 * static_cast<double>(k + 1));
}

TEST_P(Logger, IsCutBackToWhereItIsResumed) {
  const CallbackPtr first = make();
  std::string state;
  const train::History history = fit(first, 0, 4, [&](int epoch) {
    if (epoch == 1) state = first->to_text();
  });
  const CallbackPtr second = make();
  second->from_text(state);
  const train::History resumed = fit(second, 2, 3);
  const std::vector<CurvePoint> points = curves_in(path()).at(GetParam().epoch_loss);
  ASSERT_EQ(points.size(), 3u) << "epoch 3 of the first training is gone, no epoch is there twice";
  for (std::size_t k = 0; k < 3; ++k) EXPECT_EQ(points[k].x, static_cast<double>(k));
  EXPECT_FLOAT_EQ(static_cast<float>(points[1].y), static_cast<float>(history.of("loss")[1]));
  EXPECT_FLOAT_EQ(static_cast<float>(points[2].y), static_cast<float>(resumed.of("loss")[0]));
}

TEST_P(Logger, IsEmptyAgainWhereNoRowWasWritten) {
  const std::string state = make()->to_text();
  fit(make(), 0, 2);
  const CallbackPtr second = make();
  second->from_text(state);
  fit(second, 0, 1);
  EXPECT_EQ(curves_in(path()).at(GetParam().epoch_loss).size(), 1u);
}

TEST_P(Logger, WantsSensibleOptions) {
  expect_error([&] { make(-1); }, Code::InvalidArgument, errors::kBadOption, {"every_steps must be >= 0, got -1"});
  expect_error([&] { GetParam().make("", 0); }, Code::InvalidArgument, errors::kBadOption, {"must not be empty"});
}

INSTANTIATE_TEST_SUITE_P(Kinds, Logger, testing::ValuesIn(kKinds),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(CsvLogger, ReplacesAnOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.csv", "something else\n");
  Training t(1);
  const auto logger = train::csv_logger({.path = path});
  for (int k = 0; k < 2; ++k) t.fit(known_batches(), {.epochs = 1, .callbacks = {logger}});
  const std::string content = file_content(path);
  EXPECT_EQ(content.substr(0, content.find('\n')), "epoch,accuracy,learning_rate,loss");
  EXPECT_EQ(std::count(content.begin(), content.end(), '\n'), 2) << content;
}

}  // namespace
}  // namespace lockstep
