#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/train/agreement.h"
#include "lockstep/train/checkpoint_callback.h"
#include "lockstep/train/loop.h"
#include "lockstep/train/loop_place.h"
#include "lockstep/train/progress/progress_printer.h"
#include "lockstep/train/termination.h"

namespace lockstep::train {

using LoopClock = std::chrono::steady_clock;

inline double seconds_since(LoopClock::time_point start) {
  return std::chrono::duration<double>(LoopClock::now() - start).count();
}

/// The state of a loop. loop_moments.cpp calls the callbacks and takes the decisions of all workers; loop_resume.cpp saves the loop in
/// a checkpoint and continues from one.
struct Loop::Impl {
  using Pass = detail::LoopPlace::Pass;

  /// The batches of a pass.
  struct Source {
    std::shared_ptr<detail::PassSource> batches = {};  ///< that were used last
    std::vector<std::uint64_t> replaced = {};          ///< numbers of those that were used before
    Snapshot resumed = {};                             ///< has the place to continue from, until the batches are there
    std::string entry = {};                            ///< its name in there
    bool is_resumed = false;                           ///< the batches are at that place
  };

  Impl(Strategy& strategy, LoopOptions options);

  // Moments.
  template <class F>
  void moment(F&& call);  ///< at which all workers decide together
  void batch_moment();
  void act(const detail::Ballot& all);
  /// Saves what was asked for, and ends a training that SIGTERM has reached: now, or when no window of accumulation is open.
  void save_if_possible();
  void vote(detail::Ballot mine);  ///< the rest of a moment: brings `mine`, and acts on what all have decided
  void terminate();                ///< once all have saved
  template <class F>
  void for_each_callback(F&& f);
  void report(const Callback& callback, const std::string& what);
  void epoch_ends();

  // Checkpoints.
  detail::LoopPlace place() const;
  void go_to(const detail::LoopPlace& place);
  void capture(Snapshot& into, const std::string& name);
  void check(const Snapshot& from, const std::string& name) const;
  void restore(const Snapshot& from, const std::string& name);
  void resume();
  std::optional<CheckpointEntry> checkpoint_to_resume() const;  ///< on the chief
  bool wants_places() const;
  void require_place(detail::PassSource& batches) const;
  /// The batches take the place in the checkpoint, if there is one.
  void use(Source& source, detail::PassSource& batches);
  /// That of the pass which begins: each pass of an epoch has its own.
  Source& source_of(bool training, const detail::PassSource& batches);
  std::unique_ptr<Stateful> make_state();

  // Passes.
  bool wants_step(bool of_training) const;
  /// Returns when a batch is there, or when SIGTERM has ended the training meanwhile.
  void await_batch(detail::PassSource& batches);
  void step_begins(std::int64_t rows);
  void pass_ends();
  /// Throws if an earlier training pass of the epoch took all of `steps_per_epoch`.
  void require_steps_left() const;
  [[noreturn]] void throw_no_batches(bool of_training);

  const Logs& running_logs();
  ProgressState progress(const Logs& values) const;
  void read_clocks();
  void read_learning_rate();
  void set_learning_rate(double rate);

  Strategy& strategy;
  LoopOptions options;
  Meters meters;
  Training training;
  History history;
  std::unique_ptr<ProgressPrinter> printer;  ///< of the chief
  std::unique_ptr<Stateful> state;           ///< of the loop itself, as a part of the training
  std::vector<detail::CheckpointCallback*> checkpoints;

  std::vector<Source> train_sources, validation_sources;  ///< in the order of an epoch's passes
  Pass pass = Pass::None;                                 ///< that is open
  bool has_begun = false, has_ended = false, is_epoch_open = false, is_epoch_done = false;
  bool stopping = false, ending_epoch = false, votes_in_batches = false;
  std::optional<detail::TerminationWatch> watch;  ///< while a loop runs that writes checkpoints
  std::uint64_t waiting_savers = 0;               ///< for which no moment has come yet
  bool is_terminating = false, is_terminated = false;

  /// Counts within the open epoch: what has been done, or what a resumed loop passes over because its checkpoint has the results.
  struct Counts {
    int trainings = 0, validation_begins = 0, validations = 0;
  };
  Counts done, to_pass_over;
  bool takes_up_epoch = false;
  Pass takes_up_pass = Pass::None;

  Logs train_logs, validation_logs, running;
  std::int64_t running_of_step = -1;
  std::int64_t rows_of_step = 0;
  LoopClock::time_point begun, epoch_begun, fetch_begun;
};

/// Calls `f(callback)` for each of them. What one throws ends the training on all workers.
template <class F>
void Loop::Impl::for_each_callback(F&& f) {
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

template <class F>
void Loop::Impl::moment(F&& call) {
  std::vector<Decision> made;
  detail::Ballot mine;
  for_each_callback([&](Callback& callback) {
    mine.decides_in_batches |= callback.decides_in_batches();
    made.push_back(call(callback));
    if (made.back().save_self) mine.savers |= detail::saver_bit(made.size() - 1);
  });
  mine.decision = combine(made);
  mine.decides_in_batches |= watch.has_value();
  vote(mine);
}

}  // namespace lockstep::train
