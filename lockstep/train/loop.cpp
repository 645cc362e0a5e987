#include "lockstep/train/loop.h"

#include <chrono>
#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/train/agreement.h"
#include "lockstep/train/progress/progress_printer.h"

namespace lockstep::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The share of an epoch's time spent waiting for input from which a line says so.
constexpr double kNotableWait = 0.25;

[[noreturn]] void throw_option(const std::string& what, const std::string& help) {
  throw InvalidArgument(errors::kBadOption, {.what = what, .where = "a training loop", .help = help});
}

void require_options(const LoopOptions& options) {
  if (options.epochs < 0) throw_option(str("epochs must be >= 0, got ", options.epochs), "give the number of epochs");
  if (options.initial_epoch < 0)
    throw_option(str("initial_epoch must be >= 0, got ", options.initial_epoch), "epochs are counted from 0");
  if (options.steps_per_epoch && *options.steps_per_epoch < 1)
    throw_option(str("steps_per_epoch must be >= 1, got ", *options.steps_per_epoch),
                 "leave it out: an epoch is a pass over the data");
  std::set<std::string> names;
  for (const auto& callback : options.callbacks) {
    if (callback == nullptr)
      throw_option("a callback must not be null", "use std::make_shared of the callback's class");
    if (!names.insert(callback->name()).second)
      throw_option(str("two callbacks have the name \"", callback->name(), "\", the key of their state"),
                   "give one of them another name");
  }
  if (options.schedule && options.optimizers.empty())
    throw_option("a schedule needs an optimizer", "give the loop .optimizers = {optimizer}");
}

}  // namespace

struct Loop::Impl {
  Impl(Strategy& given, LoopOptions o)
      : strategy(given), options(std::move(o)), meters(given, options.metrics), training{.strategy = given} {
    training.parts = options.parts;
    training.epoch = options.initial_epoch;
    training.epochs = options.epochs;
    training.running_logs = [this]() -> const Logs& { return running_logs(); };
    history.first_epoch = options.initial_epoch;
    if (strategy.is_chief() && options.verbose != Verbose::Silent)
      printer =
          std::make_unique<ProgressPrinter>(options.verbose, options.out ? screen_of(*options.out) : standard_output());
  }

  const Logs& running_logs() {
    if (running_of_step != training.step) running = meters.values_here();
    running_of_step = training.step;
    return running;
  }

  ProgressState progress(const Logs& values) const {
    return {.epoch = training.epoch,
            .epochs = training.epochs,
            .current = training.batch,
            .total = training.batches,
            .seconds = training.epoch_seconds,
            .values = values};
  }

  void read_clocks() {
    training.seconds = seconds_since(begun);
    training.epoch_seconds = seconds_since(epoch_begun);
  }

  void read_learning_rate() {
    if (!options.optimizers.empty()) training.learning_rate = options.optimizers[0].get();
  }
  void set_learning_rate(double rate) {
    for (const LearningRate& optimizer : options.optimizers) optimizer.set(rate);
    read_learning_rate();
  }

  /// Calls `f(callback)` for each of them. What one throws ends the training on all workers.
  template <class F>
  void for_each_callback(F&& f) {
    for (const auto& callback : options.callbacks) {
      try {
        f(*callback);
      } catch (Error& error) {
        error.add_where(lockstep::str("callback \"", callback->name(), "\""));
        report(*callback, error.text().what);
        throw;
      } catch (const std::exception& error) {
        say(Severity::Error, lockstep::str("callback \"", callback->name(), "\" threw: ", error.what()));
        report(*callback, error.what());
        throw;
      }
    }
  }
  void report(const Callback& callback, const std::string& what) {
    WorkerGroup* const workers = lockstep::detail::StrategyAccess::workers(strategy);
    if (workers != nullptr) workers->report(lockstep::str("callback \"", callback.name(), "\": ", what));
  }

  /// A moment at which all workers decide together.
  template <class F>
  void moment(F&& call) {
    std::vector<Decision> made;
    bool votes = false;
    for_each_callback([&](Callback& callback) {
      votes |= callback.decides_in_batches();
      made.push_back(call(callback));
    });
    read_learning_rate();
    const detail::Ballot all = detail::agree(strategy, {combine(made), training.learning_rate, votes});
    votes_in_batches = all.decides_in_batches;
    act(all.decision);
  }

  void batch_moment() {
    if (options.callbacks.empty() && !votes_in_batches) return;
    Decision all;
    for_each_callback([&](Callback& callback) {
      Decision made = callback.batch_ends(training);
      if (made.is_nothing()) return;
      if (!callback.decides_in_batches()) {
        throw FailedPrecondition(errors::kWrongContext,
                                 {.what = lockstep::str("callback \"", callback.name(),
                                                        "\" made a decision after a step, got ", to_string(made)),
                                  .help = "override decides_in_batches to return true, so that workers exchange "
                                          "decisions after every step"});
      }
      all = combine({all, made});
    });
    if (!votes_in_batches) return;
    read_learning_rate();
    act(detail::agree(strategy, {all, training.learning_rate, true}).decision);
  }

  void act(const Decision& decision) {
    if (decision.is_nothing()) return;
    if (decision.learning_rate) set_learning_rate(*decision.learning_rate);
    stopping |= decision.stop;
    ending_epoch |= decision.end_epoch || decision.stop;
    if (decision.stop && history.stopped.empty())
      history.stopped = decision.reason.empty() ? "a callback stopped the training" : decision.reason;
    if (printer && !decision.reason.empty())
      printer->say(lockstep::str("Epoch ", training.epoch + 1, ": ", to_string(decision)));
    if (decision.save) {
      for_each_callback([&](Callback& callback) { callback.save(training); });
    }
  }

  void epoch_ends() {
    Logs logs = train_logs;
    logs.insert(validation_logs.begin(), validation_logs.end());
    read_clocks();
    history.epochs.push_back(logs);
    if (printer) {
      printer->epoch_ends(progress(logs));
      const double wait = training.input_wait_seconds / std::max(training.epoch_seconds, 1e-9);
      if (wait > kNotableWait && training.epoch_seconds > 1)
        printer->say(
            lockstep::str("  input: ", static_cast<int>(100 * wait), "% of the epoch was spent waiting for batches"));
    }
    moment([&](Callback& callback) { return callback.epoch_ends(training, logs); });
    is_epoch_open = false;
    ++training.epoch;
  }

  Strategy& strategy;
  LoopOptions options;
  Meters meters;
  Training training;
  History history;
  std::unique_ptr<ProgressPrinter> printer;  ///< of the chief

  enum class Pass { None, Training, Validation };
  Pass pass = Pass::None;        ///< that is open
  const void* source = nullptr;  ///< of the training pass that may continue in the next epoch
  bool has_begun = false, has_ended = false, is_epoch_open = false;
  bool stopping = false, ending_epoch = false, votes_in_batches = false;

  Logs train_logs, validation_logs, running;
  std::int64_t running_of_step = -1;
  std::int64_t rows_of_step = 0;
  Clock::time_point begun, epoch_begun, fetch_begun;
};

Loop::Loop(Strategy& strategy, LoopOptions options) {
  require_options(options);
  lockstep::detail::require_outside_of_run("a training loop", "call fit, or make the loop, outside of strategy.run");
  impl_ = std::make_unique<Impl>(strategy, std::move(options));
}
Loop::~Loop() = default;

Meters& Loop::meters() { return impl_->meters; }
const Training& Loop::training() const { return impl_->training; }
const History& Loop::history() const { return impl_->history; }
Strategy& Loop::strategy() const { return impl_->strategy; }

void Loop::stop(const std::string& reason) { impl_->act({.stop = true, .reason = reason}); }

bool Loop::next_epoch() {
  lockstep::detail::require_outside_of_run("Loop::next_epoch", "call it between two epochs, outside of strategy.run");
  Impl& self = *impl_;
  if (!self.has_begun) {
    self.has_begun = true;
    self.begun = self.epoch_begun = Clock::now();
    self.moment([&](Callback& callback) { return callback.train_begins(self.training); });
  }
  if (self.is_epoch_open) {
    pass_ends();
    self.epoch_ends();
  }
  if (self.has_ended) return false;
  Training& training = self.training;
  if (self.stopping || training.epoch >= training.epochs) {
    self.has_ended = true;
    self.read_clocks();
    self.moment([&](Callback& callback) { return callback.train_ends(training); });
    return false;
  }
  self.is_epoch_open = true;
  self.ending_epoch = false;
  self.train_logs.clear();
  self.validation_logs.clear();
  self.meters.reset();
  training.batch = training.rows = 0;
  training.input_wait_seconds = 0;
  self.epoch_begun = Clock::now();
  self.read_clocks();
  self.moment([&](Callback& callback) { return callback.epoch_begins(training); });
  return true;
}

void Loop::begin_validation() {
  pass_ends();
  impl_->moment([&](Callback& callback) { return callback.validation_begins(impl_->training); });
}

void Loop::pass_begins(bool training, std::optional<std::int64_t> steps_of_pass) {
  Impl& self = *impl_;
  if (!self.is_epoch_open) {
    throw FailedPrecondition(errors::kWrongContext, {.what = "steps of a loop belong inside an epoch",
                                                     .help = "write while (loop.next_epoch()) { ... } around them"});
  }
  pass_ends();
  self.pass = training ? Impl::Pass::Training : Impl::Pass::Validation;
  if (!training) return;
  self.training.batches = self.options.steps_per_epoch ? self.options.steps_per_epoch : steps_of_pass;
  self.read_clocks();
  if (self.printer) self.printer->epoch_begins(self.progress({}));
}

bool Loop::wants_step() const {
  const Impl& self = *impl_;
  if (self.ending_epoch) return false;
  return !self.options.steps_per_epoch || self.training.batch < *self.options.steps_per_epoch;
}

bool Loop::continues_pass() const { return impl_->options.steps_per_epoch.has_value(); }
void Loop::note_pass_started(const void* source) {
  if (source != nullptr) impl_->source = source;
}
bool Loop::is_pass_open(const void* source) const { return impl_->source == source; }
void Loop::fetch_begins() { impl_->fetch_begun = Clock::now(); }

void Loop::step_begins(std::int64_t rows) {
  Impl& self = *impl_;
  if (self.pass != Impl::Pass::Training) return;
  self.rows_of_step = rows;
  self.training.input_wait_seconds += seconds_since(self.fetch_begun);
  if (!self.options.schedule) return;
  const double rate = self.options.schedule.rate(self.training.step);
  if (rate != self.training.learning_rate) self.set_learning_rate(rate);
}

void Loop::step_ends() {
  Impl& self = *impl_;
  if (self.pass != Impl::Pass::Training) return;
  ++self.training.step;
  ++self.training.batch;
  self.training.rows += self.rows_of_step;
  self.read_clocks();
  if (self.printer && self.printer->is_due(self.progress({}))) self.printer->show(self.progress(self.running_logs()));
  self.batch_moment();
}

void Loop::pass_ends() {
  Impl& self = *impl_;
  const Impl::Pass pass = std::exchange(self.pass, Impl::Pass::None);
  if (pass == Impl::Pass::None) return;
  Logs logs = self.meters.values();
  self.meters.reset();
  self.running_of_step = -1;
  if (pass == Impl::Pass::Training) {
    self.train_logs = std::move(logs);
    return;
  }
  for (const auto& [name, value] : logs) self.validation_logs["val_" + name] = value;
  self.read_clocks();
  self.moment([&](Callback& callback) { return callback.validation_ends(self.training, self.validation_logs); });
}

void Loop::throw_no_batches(bool training) const {
  impl_->pass = Impl::Pass::None;
  const std::string what =
      training ? "the dataset to train on has no batches" : "the dataset for validation has no batches";
  throw InvalidArgument(
      errors::kBadOption,
      {.what = what,
       .where = lockstep::str("epoch ", impl_->training.epoch + 1, " of ", impl_->training.epochs),
       .help = "look at what dataset.to_string() reads, and at .batch(size, {.drop_remainder = true}), "
               "which drops the only batch of a small dataset"});
}

}  // namespace lockstep::train
