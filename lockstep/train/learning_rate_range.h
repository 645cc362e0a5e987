#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/strategy/snapshot.h"
#include "lockstep/train/model.h"

namespace lockstep::train {

/// Options of `learning_rate_range`.
struct LearningRateRangeOptions {
  double from = 1e-6;                  ///< the first rate
  double to = 1;                       ///< the last rate
  int steps = 100;                     ///< updates of the weights, each with a rate that is larger by the same factor
  double smoothing = 0.9;              ///< of the losses: the weight of what came before
  double stop_at = 4;                  ///< ends when the smoothed loss is so many times its least value; 0: goes on
  std::string monitor = "loss";        ///< the value that is looked at
  std::vector<NamedState> parts = {};  ///< state of the program's own to put back, as in FitOptions
};

/// The losses of a training whose learning rate rises from step to step.
struct LOCKSTEP_EXPORT LearningRateRange {
  /// A step with its rate.
  struct Point {
    double rate = 0;      ///< learning rate of the step
    double loss = 0;      ///< of the step's batches, before its update
    double smoothed = 0;  ///< the moving average of `loss`
  };
  std::vector<Point> points;  ///< one for each step
  /// Where the loss falls fastest, before it is least; none if it never falls.
  std::optional<double> suggestion;

  /// A picture: losses over rates, on logarithmic axes where all are positive.
  std::string svg() const;
};

namespace detail {

/// Trains with a callback and a schedule, for one epoch per step of `batches`. Then puts everything back, also if that failed on the
/// only worker.
using TrainRange = std::function<void(std::shared_ptr<Callback>, Schedule)>;
LOCKSTEP_EXPORT LearningRateRange run_range_test(Strategy& strategy, const LearningRateRangeOptions& options,
                                                 int batches, const TrainRange& train);

}  // namespace detail

/// Trains for some steps with a learning rate that rises from one to the next, and puts everything back: weights, optimizer,
/// scaler, random numbers. Every worker must call it, outside of run. Give it an ordinary dataset: the passes over one that was
/// distributed already are counted. With ModelOptions.accumulate = k each step takes k batches, as in training.
///
///     const auto range = ls::train::find_learning_rate(model, batches, {.from = 1e-5, .to = 1});
///     optimizer.set_learning_rate(range.suggestion.value_or(1e-3));
template <class T>
LearningRateRange find_learning_rate(Model& model, const Batches<T>& batches,
                                     const LearningRateRangeOptions& options = {}) {
  const int batches_of_step = model.options().accumulate.value_or(1);
  const auto train = [&](std::shared_ptr<Callback> test, Schedule rates) {
    model.fit(batches, FitOptions<T>{.epochs = options.steps,
                                     .steps_per_epoch = batches_of_step,
                                     .callbacks = {std::move(test)},
                                     .schedule = std::move(rates),
                                     .verbose = Verbose::Silent,
                                     .parts = options.parts});
  };
  return detail::run_range_test(model.strategy(), options, batches_of_step, train);
}
template <class T>
LearningRateRange find_learning_rate(Model& model, const data::Dataset<T>& dataset,
                                     const LearningRateRangeOptions& options = {}) {
  return find_learning_rate(model, Batches<T>(dataset), options);
}

}  // namespace lockstep::train
