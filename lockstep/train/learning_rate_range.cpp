#include "lockstep/train/learning_rate_range.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/train/logs/chart.h"
#include "lockstep/train/logs/curves.h"
#include "lockstep/train/monitored.h"
#include "lockstep/train/require_option.h"

namespace lockstep::train {
namespace {

void require_valid(const LearningRateRangeOptions& options) {
  const auto require = [](bool holds, const std::string& what, const char* help) {
    detail::require_option(holds, "find_learning_rate", what, help);
  };
  require(std::isfinite(options.from) && std::isfinite(options.to) && options.from > 0 && options.to > options.from,
          lockstep::str("`from` must be > 0 and < `to`, got ", options.from, " and ", options.to),
          "give the least and the greatest learning rate to try");
  require(options.steps >= 5, lockstep::str("`steps` must be >= 5, got ", options.steps), "100 are usual");
  require(options.smoothing >= 0 && options.smoothing < 1,
          lockstep::str("`smoothing` must be from 0 to 0.999, got ", options.smoothing),
          "0 takes the losses as they are");
  require(options.stop_at == 0 || options.stop_at > 1,
          lockstep::str("`stop_at` must be > 1, or 0, got ", options.stop_at), "0 goes on to the last step");
}

double rate_of(const LearningRateRangeOptions& options, std::int64_t step) {
  const double done = static_cast<double>(step) / static_cast<double>(options.steps - 1);
  return options.from * std::pow(options.to / options.from, done);
}

/// Where the loss falls fastest per factor of the rate, by the smoothed one, which is late by the mean age of what it is made of. The
/// first points are those of a young average.
std::optional<double> steepest(const std::vector<LearningRateRange::Point>& points, double smoothing) {
  const auto lag = static_cast<std::ptrdiff_t>(std::lround(smoothing / (1 - smoothing)));
  const auto least = std::ranges::min_element(points, {}, &LearningRateRange::Point::smoothed) - points.begin();
  const auto first = std::max<std::ptrdiff_t>(std::ssize(points) / 20, 1);
  double best = 0;
  std::optional<double> found;
  for (std::ptrdiff_t i = first; i < least; ++i) {
    const auto &before = points[static_cast<std::size_t>(i - 1)], &after = points[static_cast<std::size_t>(i + 1)];
    const double slope = (after.smoothed - before.smoothed) / std::log(after.rate / before.rate);
    if (!(slope < best)) continue;
    best = slope;
    found = points[static_cast<std::size_t>(std::max<std::ptrdiff_t>(i - lag, 0))].rate;
  }
  return found;
}

/// Notes losses, and puts back what it was given. An epoch is one step of the test, a window of `.accumulate`, so that losses are
/// those of all workers.
class RangeTest final : public Callback {
 public:
  RangeTest(LearningRateRangeOptions options, int batches) : options_(std::move(options)), batches_(batches) {}
  std::string name() const override { return "find_learning_rate"; }

  Decision train_begins(const Training& training) override {
    for (const NamedState& part : training.parts) {
      if (part.name != "loop") parts_.push_back(part);
    }
    before_ = capture(training.strategy, parts_);
    return {};
  }
  Decision epoch_ends(const Training& training, const Logs& logs) override {
    const double loss = detail::monitored("find_learning_rate", options_.monitor, logs);
    if (!std::isfinite(loss)) return {.stop = true};
    losses_.push_back({rate_of(options_, (training.step - 1) / batches_), loss});
    const double last = smoothed(losses_, options_.smoothing).back().y;
    least_ = losses_.size() == 1 ? last : std::min(least_, last);
    return {.stop = options_.stop_at > 0 && least_ > 0 && last > options_.stop_at * least_};
  }

  void put_back(Strategy& strategy) {
    if (before_) restore(strategy, *before_, parts_);
    before_.reset();
    parts_.clear();
  }
  LearningRateRange result() const {
    LearningRateRange range;
    const auto calm = smoothed(losses_, options_.smoothing);
    for (std::size_t i = 0; i < losses_.size(); ++i) range.points.push_back({losses_[i].x, losses_[i].y, calm[i].y});
    range.suggestion = steepest(range.points, options_.smoothing);
    return range;
  }

 private:
  LearningRateRangeOptions options_;
  int batches_;  ///< of a step
  std::vector<NamedState> parts_;
  std::optional<Snapshot> before_;
  std::vector<CurvePoint> losses_;  ///< over rates
  double least_ = 0;                ///< of the smoothed losses
};

}  // namespace

LearningRateRange detail::run_range_test(Strategy& strategy, const LearningRateRangeOptions& options, int batches,
                                         const TrainRange& train) {
  require_valid(options);
  const auto test = std::make_shared<RangeTest>(options, batches);
  try {
    train(test, [=](std::int64_t step) { return rate_of(options, step / batches); });
  } catch (...) {
    if (strategy.num_workers() == 1) test->put_back(strategy);  // with several it is not known what the others do
    throw;
  }
  test->put_back(strategy);
  return test->result();
}

std::string LearningRateRange::svg() const {
  Curve losses{.name = "loss"}, calm{.run = "smoothed", .name = "loss"};
  for (const Point& point : points) {
    losses.points.push_back({point.rate, point.loss});
    calm.points.push_back({point.rate, point.smoothed});
  }
  losses.run = "each step";
  const bool are_positive = std::ranges::all_of(points, [](const Point& point) { return point.loss > 0; });
  return svg_of({losses, calm},
                {.title = suggestion ? lockstep::str("Falls fastest at a learning rate of ", *suggestion)
                                     : "The loss does not fall",
                 .log_scale = are_positive,  // losses that explode would flatten all others
                 .log_x = true});
}

}  // namespace lockstep::train
