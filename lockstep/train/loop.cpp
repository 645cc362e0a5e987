#include "lockstep/train/loop.h"

#include <set>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/train/loop_impl.h"
#include "lockstep/train/require_option.h"

namespace lockstep::train {
namespace {

void require_options(const LoopOptions& options) {
  const auto require = [](bool holds, const std::string& what, const char* help) {
    detail::require_option(holds, "a training loop", what, help);
  };
  require(options.epochs >= 0, str("epochs must be >= 0, got ", options.epochs), "give the number of epochs");
  require(options.initial_epoch >= 0, str("initial_epoch must be >= 0, got ", options.initial_epoch),
          "epochs are counted from 0");
  const std::int64_t steps = options.steps_per_epoch.value_or(1);
  require(steps >= 1, str("steps_per_epoch must be >= 1, got ", steps),
          "leave it out: an epoch is a pass over the data");
  std::set<std::string> names;
  for (const auto& callback : options.callbacks) {
    require(callback != nullptr, "a callback must not be null", "use std::make_shared of the callback's class");
    require(names.insert(callback->name()).second,
            str("two callbacks have the name \"", callback->name(), "\", the key of their state"),
            "give one of them another name");
  }
  require(!options.schedule || !options.optimizers.empty(), "a schedule needs an optimizer",
          "give the loop .optimizers = {optimizer}");
}

/// Adds what a pass measured to the values of the epoch's passes of its kind.
void add_values(Logs& to, const Logs& values, bool of_training, const Training& training) {
  const std::string prefix = of_training ? "" : "val_";
  for (const auto& [name, value] : values) {
    if (to.emplace(prefix + name, value).second) continue;
    throw InvalidArgument(
        errors::kBadOption,
        {.what = str("two ", of_training ? "training" : "validation", " passes of an epoch have a value \"", name, '"'),
         .where = str("epoch ", training.epoch + 1, " of ", training.epochs),
         .help = "give add_mean another name in each pass; add to the loop's metrics in one of the passes, and measure "
                 "the others with ls::train::Meters of their own"});
  }
}

}  // namespace

Loop::Impl::Impl(Strategy& given, LoopOptions o)
    : strategy(given), options(std::move(o)), meters(given, options.metrics), training{.strategy = given} {
  training.parts = options.parts;
  state = make_state();
  training.parts.emplace_back("loop", *state);
  training.epoch = options.initial_epoch;
  training.epochs = options.epochs;
  training.running_logs = [this]() -> const Logs& { return running_logs(); };
  training.updates = [this] {
    const std::int64_t updates = options.optimizers.empty() ? -1 : options.optimizers[0].updates();
    return updates < 0 ? training.step : updates;
  };
  history.first_epoch = options.initial_epoch;
  for (const auto& callback : options.callbacks) {
    if (auto* const writer = dynamic_cast<detail::CheckpointCallback*>(callback.get())) checkpoints.push_back(writer);
  }
  if (strategy.is_chief() && options.verbose != Verbose::Silent)
    printer =
        std::make_unique<ProgressPrinter>(options.verbose, options.out ? screen_of(*options.out) : standard_output());
}

const Logs& Loop::Impl::running_logs() {
  if (running_of_step != training.step) running = meters.values_here();
  running_of_step = training.step;
  return running;
}

ProgressState Loop::Impl::progress(const Logs& values) const {
  return {.epoch = training.epoch,
          .epochs = training.epochs,
          .current = training.batch,
          .total = training.batches,
          .seconds = training.epoch_seconds,
          .values = values};
}

void Loop::Impl::read_clocks() {
  training.seconds = seconds_since(begun);
  training.epoch_seconds = seconds_since(epoch_begun);
}

void Loop::Impl::read_learning_rate() {
  if (!options.optimizers.empty()) training.learning_rate = options.optimizers[0].get();
}

void Loop::Impl::set_learning_rate(double rate) {
  for (const LearningRate& optimizer : options.optimizers) optimizer.set(rate);
  read_learning_rate();
}

void Loop::Impl::require_steps_left() const {
  if (done.trainings == 0 || ending_epoch || !options.steps_per_epoch || training.batch < *options.steps_per_epoch)
    return;
  throw FailedPrecondition(
      errors::kWrongContext,
      {.what = str("no step is left for another training pass: those before it took all ", training.batch,
                   " steps of steps_per_epoch"),
       .where = str("epoch ", training.epoch + 1, " of ", training.epochs),
       .help = "leave out steps_per_epoch and end passes with break, or use .take(n) of their datasets"});
}

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

void Loop::stop(const std::string& reason) { impl_->act({.decision = {.stop = true, .reason = reason}}); }

void Loop::require_place(detail::PassSource& batches) { impl_->require_place(batches); }

bool Loop::next_epoch() {
  lockstep::detail::require_outside_of_run("Loop::next_epoch", "call it between two epochs, outside of strategy.run");
  Impl& self = *impl_;
  if (!self.has_begun) {
    self.has_begun = true;
    self.begun = self.epoch_begun = LoopClock::now();
    if (!self.checkpoints.empty()) self.watch.emplace();
    self.resume();
    self.moment([&](Callback& callback) { return callback.train_begins(self.training); });
  }
  if (self.is_terminated) return false;
  if (std::exchange(self.takes_up_epoch, false)) {
    self.is_epoch_open = true;
    return true;
  }
  if (self.is_epoch_open) {
    self.pass_ends();
    self.epoch_ends();
    if (self.is_terminated) return false;
  }
  if (self.has_ended) return false;
  Training& training = self.training;
  if (self.stopping || training.epoch >= training.epochs) {
    self.has_ended = true;
    self.read_clocks();
    self.moment([&](Callback& callback) { return callback.train_ends(training); });
    self.watch.reset();
    if (self.waiting_savers != 0)
      say_warning(str("the checkpoint after step ", training.step,
                      " is left out: the training has ended inside a window of set_accumulate"));
    return false;
  }
  self.is_epoch_open = true;
  self.ending_epoch = false;
  self.done = self.to_pass_over = {};
  self.train_logs.clear();
  self.validation_logs.clear();
  self.meters.reset();
  training.batch = training.rows = 0;
  training.input_wait_seconds = 0;
  self.epoch_begun = LoopClock::now();
  self.read_clocks();
  self.moment([&](Callback& callback) { return callback.epoch_begins(training); });
  return !self.is_terminated;
}

void Loop::begin_validation() {
  Impl& self = *impl_;
  self.pass_ends();
  if (self.is_terminated) return;
  if (self.to_pass_over.validation_begins > self.done.validation_begins++) return;
  self.moment([&](Callback& callback) { return callback.validation_begins(self.training); });
}

Loop::PassBegin Loop::begin_pass(bool training, detail::PassSource* given) {
  Impl& self = *impl_;
  if (given == nullptr) self.throw_no_batches(training);
  detail::PassSource& batches = *given;
  if (!self.is_epoch_open) {
    throw FailedPrecondition(errors::kWrongContext, {.what = "steps of a loop belong inside an epoch",
                                                     .help = "write while (loop.next_epoch()) { ... } around them"});
  }
  self.pass_ends();
  if (self.is_terminated) return PassBegin::PassedOver;
  self.require_place(batches);
  Impl::Source& source = self.source_of(training, batches);
  const bool is_new = source.batches.get() != &batches;
  if (is_new) self.use(source, batches);
  if (training)
    self.training.batches = self.options.steps_per_epoch ? self.options.steps_per_epoch : batches.steps(self.strategy);
  int& done = training ? self.done.trainings : self.done.validations;
  if (done < (training ? self.to_pass_over.trainings : self.to_pass_over.validations)) {
    ++done;
    return PassBegin::PassedOver;
  }
  if (training && self.takes_up_pass != Impl::Pass::Training) self.require_steps_left();
  self.pass = training ? Impl::Pass::Training : Impl::Pass::Validation;
  const bool takes_up = std::exchange(self.takes_up_pass, Impl::Pass::None) == self.pass;
  const bool is_resumed = std::exchange(source.is_resumed, false);
  const bool continues = training && self.options.steps_per_epoch && (!is_new || is_resumed);
  if (!continues && !(takes_up && is_resumed)) batches.start_pass(self.strategy);
  if (training) {
    self.read_clocks();
    if (self.printer) self.printer->epoch_begins(self.progress({}));
  }
  return takes_up ? PassBegin::TakenUp : PassBegin::Begun;
}

bool Loop::begin_step(bool training, detail::PassSource& batches, bool is_first, FunctionRef<std::int64_t()> take) {
  Impl& self = *impl_;
  self.fetch_begun = LoopClock::now();
  // With steps_per_epoch, a pass over the data that ends is followed by the next one.
  const bool continues = training && self.options.steps_per_epoch;
  for (bool is_next_pass = false; self.wants_step(training); is_next_pass = true) {
    self.await_batch(batches);
    if (!self.wants_step(training)) break;
    const std::int64_t rows = take();
    if (rows >= 0) {
      self.step_begins(rows);
      return true;
    }
    if (continues ? is_next_pass : is_first) self.throw_no_batches(training);
    if (!continues) break;
    batches.start_pass(self.strategy);
  }
  self.pass_ends();
  return false;
}

bool Loop::Impl::wants_step(bool of_training) const {
  if (is_terminated) return false;
  return !of_training || (!ending_epoch && (!options.steps_per_epoch || training.batch < *options.steps_per_epoch));
}

void Loop::Impl::step_begins(std::int64_t rows) {
  if (pass != Pass::Training) return;
  rows_of_step = rows;
  training.input_wait_seconds += seconds_since(fetch_begun);
  read_learning_rate();  // callbacks may have set it in the optimizer after the step before
  if (!options.schedule) return;
  const double rate = options.schedule.rate(training.step);
  if (rate != training.learning_rate) set_learning_rate(rate);
}

void Loop::end_step() {
  Impl& self = *impl_;
  if (self.pass == Impl::Pass::Validation && self.votes_in_batches) self.vote({.decides_in_batches = true});
  if (self.pass != Impl::Pass::Training) return;
  ++self.training.step;
  ++self.training.batch;
  self.training.rows += self.rows_of_step;
  self.read_clocks();
  if (self.printer && self.printer->is_due(self.progress({}))) self.printer->show(self.progress(self.running_logs()));
  self.batch_moment();
}

void Loop::Impl::pass_ends() {
  const Pass ended = std::exchange(pass, Pass::None);
  if (ended == Pass::None || is_terminated) return;
  const Logs logs = meters.values();
  meters.reset();
  running_of_step = -1;
  if (ended == Pass::Training) {
    ++done.trainings;
    add_values(train_logs, logs, /*of_training=*/true, training);
    return;
  }
  ++done.validations;
  add_values(validation_logs, logs, /*of_training=*/false, training);
  read_clocks();
  moment([&](Callback& callback) { return callback.validation_ends(training, validation_logs); });
}

void Loop::Impl::throw_no_batches(bool of_training) {
  pass = Pass::None;
  throw InvalidArgument(
      errors::kBadOption,
      {.what = of_training ? "the dataset to train on has no batches" : "the dataset for validation has no batches",
       .where = str("epoch ", training.epoch + 1, " of ", training.epochs),
       .help = "look at what dataset.to_string() reads, and at .batch(size, {.drop_remainder = true}), "
               "which drops the only batch of a small dataset"});
}

}  // namespace lockstep::train
