#include "lockstep/train/callbacks.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/train/exact_numbers.h"
#include "lockstep/train/monitored.h"
#include "lockstep/train/require_option.h"
#include "lockstep/values/float_text.h"

namespace lockstep::train {
namespace {

using detail::exact_number;
using detail::exact_text;
using detail::monitored;
using detail::require_option;

class EarlyStopping final : public Callback {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)) {
    require_option(options_.patience >= 0, "early_stopping",
                   lockstep::str("patience must be >= 0, got ", options_.patience),
                   "give the number of epochs to wait");
    require_option(options_.min_delta >= 0, "early_stopping",
                   lockstep::str("min_delta must be >= 0, got ", options_.min_delta),
                   "give the smallest change that counts as an improvement");
  }
  std::string name() const override { return "early_stopping"; }
  Decision train_begins(const Training& training) override {
    if (training.is_resumed) return {};
    best_.reset();
    bad_ = 0;
    return {};
  }
  Decision epoch_ends(const Training& training, const Logs& logs) override {
    const double value = monitored("early_stopping", options_.monitor, logs);
    if (training.epoch < options_.start_from_epoch) return {};
    if (!best_ || is_better(value, *best_)) {
      best_ = value;
      bad_ = 0;
      return {};
    }
    if (++bad_ <= options_.patience) return {};
    return {.stop = true,
            .reason = lockstep::str(options_.monitor, " has not improved on ", float_text(static_cast<float>(*best_)),
                                    " for ", counted(bad_, "epoch"))};
  }
  std::string to_text() const override {
    return nlohmann::json{{"best", best_ ? exact_text(*best_) : ""}, {"bad", bad_}}.dump();
  }
  void from_text(const std::string& text) override {
    const auto state = nlohmann::json::parse(text);
    best_ = state.at("best") == "" ? std::nullopt : std::optional(exact_number(state.at("best")));
    bad_ = state.at("bad");
  }

 private:
  bool is_better(double value, double best) const {
    if (std::isnan(best)) return !std::isnan(value);
    return options_.larger_is_better ? value > best + options_.min_delta : value < best - options_.min_delta;
  }

  EarlyStoppingOptions options_;
  std::optional<double> best_;
  int bad_ = 0;
};

class RateOfEpoch final : public Callback {
 public:
  explicit RateOfEpoch(std::function<double(int, double)> rate) : rate_(std::move(rate)) {}
  std::string name() const override { return "learning_rate_scheduler"; }
  Decision epoch_begins(const Training& training) override {
    const double rate = rate_(training.epoch, training.learning_rate);
    if (rate == training.learning_rate) return {};
    return {.learning_rate = rate};
  }

 private:
  std::function<double(int, double)> rate_;
};

class ReduceOnPlateau final : public Callback {
 public:
  explicit ReduceOnPlateau(const ReduceOnPlateauOptions& options)
      : monitor_(options.monitor),
        schedule_{.factor = options.factor,
                  .patience = options.patience,
                  .threshold = options.threshold,
                  .cooldown = options.cooldown,
                  .min_rate = options.min_rate,
                  .larger_is_better = options.larger_is_better} {}
  std::string name() const override { return "reduce_on_plateau"; }
  Decision train_begins(const Training& training) override {
    if (!training.is_resumed) schedule_.load_state({});
    return {};
  }
  Decision epoch_ends(const Training& training, const Logs& logs) override {
    const double value = monitored("reduce_on_plateau", monitor_, logs);
    if (schedule_.state().rate < 0) schedule_.base = training.learning_rate;
    const double rate = schedule_.observe(value);
    if (!(rate < training.learning_rate)) return {};
    return {.learning_rate = rate, .reason = monitor_ + " has stopped improving"};
  }
  std::string to_text() const override {
    const auto& state = schedule_.state();
    return nlohmann::json{{"rate", exact_text(state.rate)},
                          {"best", exact_text(state.best)},
                          {"bad", state.bad},
                          {"cooling", state.cooling}}
        .dump();
  }
  void from_text(const std::string& text) override {
    const auto state = nlohmann::json::parse(text);
    schedule_.load_state(
        {exact_number(state.at("rate")), exact_number(state.at("best")), state.at("bad"), state.at("cooling")});
    if (schedule_.state().rate >= 0) schedule_.base = schedule_.state().rate;
  }

 private:
  std::string monitor_;
  PlateauSchedule schedule_;
};

class TerminateOnNan final : public Callback {
 public:
  explicit TerminateOnNan(TerminateOnNanOptions options) : options_(std::move(options)) {
    require_option(options_.every >= 1, "terminate_on_nan", lockstep::str("every must be >= 1, got ", options_.every),
                   "1 looks after each step");
  }
  std::string name() const override { return "terminate_on_nan"; }
  bool decides_in_batches() const override { return true; }
  Decision batch_ends(const Training& training) override {
    if (training.step % options_.every != 0) return {};
    const double value = monitored("terminate_on_nan", options_.monitor, training.running_logs());
    if (std::isfinite(value)) return {};
    return {.stop = true,
            .reason = lockstep::str(options_.monitor, " is ", float_text(value), " after step ", training.step)};
  }

 private:
  TerminateOnNanOptions options_;
};

class Lambda final : public Callback {
 public:
  explicit Lambda(LambdaOptions options) : of_(std::move(options)) {}
  std::string name() const override { return of_.name; }
  bool decides_in_batches() const override { return of_.decides_in_batches; }
  Decision train_begins(const Training& training) override { return call(of_.train_begins, training); }
  Decision epoch_begins(const Training& training) override { return call(of_.epoch_begins, training); }
  Decision batch_ends(const Training& training) override { return call(of_.batch_ends, training); }
  Decision train_ends(const Training& training) override { return call(of_.train_ends, training); }
  Decision epoch_ends(const Training& training, const Logs& logs) override {
    return of_.epoch_ends ? of_.epoch_ends(training, logs) : Decision{};
  }
  void save(const Training& training) override {
    if (of_.save) of_.save(training);
  }

 private:
  static Decision call(const std::function<Decision(const Training&)>& f, const Training& training) {
    return f ? f(training) : Decision{};
  }

  LambdaOptions of_;
};

}  // namespace

CallbackPtr early_stopping(const EarlyStoppingOptions& options) { return std::make_shared<EarlyStopping>(options); }
CallbackPtr learning_rate_scheduler(std::function<double(int, double)> rate_of_epoch) {
  return std::make_shared<RateOfEpoch>(std::move(rate_of_epoch));
}
CallbackPtr reduce_on_plateau(const ReduceOnPlateauOptions& options) {
  return std::make_shared<ReduceOnPlateau>(options);
}
CallbackPtr terminate_on_nan(const TerminateOnNanOptions& options) { return std::make_shared<TerminateOnNan>(options); }
CallbackPtr lambda(LambdaOptions options) { return std::make_shared<Lambda>(std::move(options)); }

Decision Timer::train_begins(const Training& training) {
  if (training.is_resumed) return {};
  epochs_.clear();
  is_taken_ = false;
  return {};
}
Decision Timer::epoch_begins(const Training&) {
  is_taken_ = false;
  return {};
}
Decision Timer::validation_begins(const Training& training) {
  take(training);
  return {};
}
Decision Timer::epoch_ends(const Training& training, const Logs&) {
  take(training);
  return {};
}
std::string Timer::to_text() const {
  nlohmann::json epochs = nlohmann::json::array();
  for (const Epoch& epoch : epochs_)
    epochs.push_back(
        {exact_text(epoch.seconds), exact_text(epoch.rows_per_second), exact_text(epoch.input_wait_share)});
  return nlohmann::json{{"is_taken", is_taken_}, {"epochs", epochs}}.dump();
}
void Timer::from_text(const std::string& text) {
  const auto state = nlohmann::json::parse(text);
  is_taken_ = state.at("is_taken");
  epochs_.clear();
  for (const auto& epoch : state.at("epochs"))
    epochs_.push_back({exact_number(epoch.at(0)), exact_number(epoch.at(1)), exact_number(epoch.at(2))});
}
void Timer::take(const Training& training) {
  if (std::exchange(is_taken_, true)) return;
  const double seconds = std::max(training.epoch_seconds, 1e-9);
  epochs_.push_back({seconds, static_cast<double>(training.rows) / seconds, training.input_wait_seconds / seconds});
}

}  // namespace lockstep::train
