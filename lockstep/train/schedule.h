#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>

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
        set_([optimizer](double rate) mutable { optimizer.set_learning_rate(rate); }) {}

  double get() const { return get_(); }
  void set(double rate) const { set_(rate); }

 private:
  std::function<double()> get_;
  std::function<void(double)> set_;
};

}  // namespace lockstep::train
