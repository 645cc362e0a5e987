#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>

#include "lockstep/nn/open_window.h"

namespace lockstep::train {

/// A learning rate for each training step: one of Lockstep's schedules, or a function of the step. It is a function of the step
/// alone, so workers need not agree on it.
///
///     .schedule = ls::CosineSchedule{.base = 0.1, .warmup_steps = 100, .total_steps = 5'000}
///     .schedule = [](std::int64_t step) { return 0.1 / std::sqrt(1.0 + step); }
class Schedule {
 public:
  Schedule() = default;
  template <class S>
    requires requires(const S& schedule) {
      { schedule.rate(std::int64_t{0}) } -> std::convertible_to<double>;
    }
  Schedule(S schedule)  // NOLINT(google-explicit-constructor)
      : rate_([schedule = std::move(schedule)](std::int64_t step) { return schedule.rate(step); }) {}
  template <std::invocable<std::int64_t> F>
    requires(!std::same_as<F, Schedule>)
  Schedule(F f) : rate_(std::move(f)) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return static_cast<bool>(rate_); }
  /// The rate of a step.
  double rate(std::int64_t step) const { return rate_(step); }

 private:
  std::function<double(std::int64_t)> rate_;
};

/// The learning rate of an optimizer, whatever its class.
class LearningRate {
 public:
  template <class Optimizer>
    requires requires(Optimizer& optimizer) { optimizer.set_learning_rate(0.1); }
  LearningRate(Optimizer optimizer)  // NOLINT(google-explicit-constructor)
      : get_([optimizer] { return optimizer.learning_rate(); }),
        set_([optimizer](double rate) mutable { optimizer.set_learning_rate(rate); }) {
    if constexpr (requires { lockstep::detail::has_open_window(*optimizer.core()); })
      has_open_window_ = [optimizer] { return lockstep::detail::has_open_window(*optimizer.core()); };
    if constexpr (requires { optimizer.steps(); }) updates_ = [optimizer] { return optimizer.steps(); };
  }

  /// Reads the rate of the first parameter group, or sets that of all groups.
  double get() const { return get_(); }
  void set(double rate) const { set_(rate); }
  /// Whether gradients wait for the rest of their window of `set_accumulate`.
  bool has_open_window() const { return has_open_window_ && has_open_window_(); }
  /// Updates that it has made; -1 if it does not count them.
  std::int64_t updates() const { return updates_ ? updates_() : -1; }

 private:
  std::function<double()> get_;
  std::function<void(double)> set_;
  std::function<bool()> has_open_window_ = {};
  std::function<std::int64_t()> updates_ = {};
};

}  // namespace lockstep::train
