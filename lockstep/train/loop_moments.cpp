#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/train/loop_impl.h"

// The moments of a loop, at which callbacks are called and all workers decide.
namespace lockstep::train {
namespace {

/// The share of an epoch's time spent waiting for input from which a line says so.
constexpr double kNotableWait = 0.25;
constexpr std::chrono::milliseconds kLookForSignals(100);
/// Longer than workers take to leave a collective one after the other.
constexpr std::chrono::milliseconds kLastCollective(300);

}  // namespace

void Loop::Impl::report(const Callback& callback, const std::string& what) {
  WorkerGroup* const workers = lockstep::detail::StrategyAccess::workers(strategy);
  if (workers != nullptr) workers->report(lockstep::str("callback \"", callback.name(), "\": ", what));
}

void Loop::Impl::batch_moment() {
  if (options.callbacks.empty() && !votes_in_batches) return;
  detail::Ballot mine;
  std::size_t number = 0;
  for_each_callback([&](Callback& callback) {
    const std::size_t own = number++;
    Decision made = callback.batch_ends(training);
    if (made.is_nothing()) return;
    if (!callback.decides_in_batches()) {
      throw FailedPrecondition(errors::kWrongContext,
                               {.what = lockstep::str("callback \"", callback.name(),
                                                      "\" made a decision after a step, got ", to_string(made)),
                                .help = "override decides_in_batches to return true, so that workers exchange "
                                        "decisions after every step"});
    }
    if (made.save_self) mine.savers |= detail::saver_bit(own);
    mine.decision = combine({mine.decision, made});
  });
  if (!votes_in_batches) return save_if_possible();
  mine.decides_in_batches = true;
  vote(std::move(mine));
}

void Loop::Impl::vote(detail::Ballot mine) {
  read_learning_rate();
  if (mine.decision.save) mine.savers = detail::kAllSave;
  mine.learning_rate = training.learning_rate;
  mine.terminates = watch && watch->is_requested();
  const detail::Ballot all = detail::agree(strategy, mine);
  votes_in_batches = all.decides_in_batches;
  act(all);
}

void Loop::Impl::act(const detail::Ballot& all) {
  const Decision& decision = all.decision;
  if (decision.learning_rate) set_learning_rate(*decision.learning_rate);
  stopping |= decision.stop;
  ending_epoch |= decision.end_epoch || decision.stop;
  if (decision.stop && history.stopped.empty())
    history.stopped = decision.reason.empty() ? "a callback stopped the training" : decision.reason;
  if (printer && !decision.is_nothing() && !decision.reason.empty())
    printer->say(lockstep::str("Epoch ", training.epoch + 1, ": ", to_string(decision)));
  waiting_savers |= all.terminates ? detail::kAllSave : all.savers;
  is_terminating |= all.terminates;
  save_if_possible();
}

void Loop::Impl::terminate() {
  for (detail::CheckpointCallback* const callback : checkpoints) callback->finish(strategy);
  if (printer) printer->say(lockstep::str("SIGTERM: saved after step ", training.step));
  if (!options.on_sigterm) {
    // No worker goes while another may still be in the last collective: it would take that for a failure.
    if (strategy.num_workers() > 1) std::this_thread::sleep_for(kLastCollective);
    detail::end_terminated_process();
  }
  is_terminated = true;
  watch.reset();
  options.on_sigterm();
}

void Loop::Impl::await_batch(detail::PassSource& batches) {
  // Other workers may be inside the step already: with several, the vote after it decides.
  if (!watch || strategy.num_workers() > 1) return;
  while (!batches.wait_for(kLookForSignals) && watch) {
    if (watch->is_requested()) vote({.decides_in_batches = true});
  }
}

void Loop::Impl::save_if_possible() {
  if (waiting_savers == 0) return;
  for (const LearningRate& optimizer : options.optimizers) {
    if (optimizer.has_open_window()) return;
  }
  const std::uint64_t savers = std::exchange(waiting_savers, 0);
  if (is_terminating) {  // so that none is left out because of the one before
    for (detail::CheckpointCallback* const callback : checkpoints) callback->finish(strategy);
  }
  std::size_t number = 0;
  for_each_callback([&](Callback& callback) {
    if ((savers & detail::saver_bit(number++)) != 0) callback.save(training);
  });
  if (is_terminating) terminate();
}

void Loop::Impl::epoch_ends() {
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
  is_epoch_done = true;
  moment([&](Callback& callback) { return callback.epoch_ends(training, logs); });
  is_epoch_open = is_epoch_done = false;
  ++training.epoch;
}

}  // namespace lockstep::train
