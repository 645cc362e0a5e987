#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/strategy/snapshot.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/batches.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/history.h"
#include "lockstep/train/meters.h"
#include "lockstep/train/resume.h"
#include "lockstep/train/schedule.h"
#include "lockstep/train/verbose.h"

namespace lockstep::train {

/// Options of a Loop.
struct LoopOptions {
  int epochs = 1;         ///< the training ends before epoch number `epochs`
  int initial_epoch = 0;  ///< the number of the first one
  /// Steps of an epoch; by default a pass over the data. Passes then continue from one epoch to the next, and start again where
  /// they end. All training passes of an epoch share them: one for which none is left is an error.
  std::optional<std::int64_t> steps_per_epoch = {};
  std::vector<std::shared_ptr<Callback>> callbacks = {};  ///< called in this order
  std::vector<MetricPtr> metrics = {};                    ///< measured by `update` in each step
  std::vector<LearningRate> optimizers = {};  ///< whose learning rates callbacks and the schedule set: `{optimizer}`
  Schedule schedule = {};                     ///< sets the learning rate before each step
  std::vector<NamedState> parts = {};         ///< model, optimizer and so on: what callbacks save beside the loop
  Verbose verbose = Verbose::Auto;            ///< of the chief; other workers print nothing
  std::ostream* out = nullptr;                ///< where lines go in place of standard output
  Resume resume = {};                         ///< where it begins; restores `parts` too
  /// Accepts data whose position cannot be saved: a resumed loop reads the batches before its position again.
  bool inexact_resume = false;
  /// With a callback that writes checkpoints, SIGTERM to any worker makes all save at the same step. Then each of them calls this
  /// and the loop has ended; without it the process ends with status 143.
  std::function<void()> on_sigterm = {};
};

template <class T>
class Steps;

/// The epochs of a training: `fit` is built on it, and a loop of your own has the same metrics, progress and callbacks.
///
///     ls::train::Loop loop(strategy, {.epochs = 5, .metrics = {ls::train::metrics::accuracy()}, .optimizers = {optimizer}});
///     while (loop.next_epoch()) {
///       for (const auto& batch : loop.steps(batches)) {
///         strategy.run([&](const Digits& mine) {
///           auto output = net->forward(mine.images);
///           ...
///           loop.meters().add(output, mine.labels);
///         }, batch);
///       }
///     }
///
/// Every worker runs the same loop. Outside of run.
class LOCKSTEP_EXPORT Loop {
 public:
  Loop(Strategy& strategy, LoopOptions options);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Ends the epoch that is open and begins the next one; false when the training has ended.
  bool next_epoch();
  /// The steps of this epoch: a range whose elements are PerReplica batches. What follows a step in the body of the loop belongs
  /// to it; callbacks see it when the next batch is asked for. Several passes in an epoch need different names for their values:
  /// InvalidArgument otherwise.
  template <class T>
  Steps<T> steps(const Batches<T>& batches) {
    return Steps<T>(*this, batches, /*training=*/true);
  }
  /// Tells callbacks that validation begins; optional, before the model is put into evaluation mode.
  void begin_validation();
  /// A pass over all of `batches`, after the epoch's steps. What is added to the meters in it appears as "val_...".
  template <class T>
  Steps<T> validation_steps(const Batches<T>& batches) {
    return Steps<T>(*this, batches, /*training=*/false);
  }

  /// To add to inside run.
  Meters& meters();
  const Training& training() const;
  const History& history() const;
  Strategy& strategy() const;
  /// Ends the training after this step; every worker must call it at the same step, outside of the callbacks.
  void stop(const std::string& reason);
  /// Throws FailedPrecondition, with the stage that stands in the way, if the loop has checkpoints and could not resume these
  /// batches exactly. Their first pass throws it too.
  template <class T>
  void require_resumable(const Batches<T>& batches) {
    if (batches) require_place(batches.source());
  }

 private:
  template <class T>
  friend class Steps;

  enum class PassBegin { Begun, TakenUp, PassedOver };
  PassBegin begin_pass(bool training, detail::PassSource& batches);
  bool wants_step(bool training) const;
  bool continues_pass() const;  ///< from one epoch to the next
  void require_place(detail::PassSource& batches);
  void fetch_begins();
  /// Returns when a batch can be had, or when SIGTERM has ended the training meanwhile.
  void await_batch(detail::PassSource& batches);
  void step_begins(std::int64_t rows);
  void step_ends();
  void pass_ends();
  [[noreturn]] void throw_no_batches(bool training) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The steps of an epoch, for a range-based `for`.
template <class T>
class Steps {
 public:
  Steps(Loop& loop, const Batches<T>& batches, bool training)
      : loop_(&loop), source_(batches ? &batches.source() : nullptr), training_(training) {
    if (source_ == nullptr) loop.throw_no_batches(training);
    begin_ = loop.begin_pass(training, *source_);
  }

  /// The end of every pass.
  struct End {};
  /// The iterator of a range-based `for`.
  class Cursor {
   public:
    explicit Cursor(Steps& steps) : steps_(&steps) { steps_->fetch(); }
    const PerReplica<T>& operator*() const { return *steps_->batch_; }
    Cursor& operator++() {
      steps_->batch_.reset();  // before the next one is fetched, so that its memory can be used again
      steps_->loop_->step_ends();
      steps_->fetch();
      return *this;
    }
    bool operator==(End) const { return !steps_->batch_; }

   private:
    Steps* steps_;
  };
  Cursor begin() { return Cursor(*this); }
  End end() { return {}; }

 private:
  void fetch() {
    if (begin_ == Loop::PassBegin::PassedOver) return;
    if (!loop_->wants_step(training_)) return loop_->pass_ends();
    loop_->fetch_begins();
    if (!take()) return loop_->pass_ends();
    if (!batch_ && training_ && loop_->continues_pass()) {
      source_->start_pass(loop_->strategy());
      if (!take()) return loop_->pass_ends();
      if (!batch_) loop_->throw_no_batches(training_);
    }
    if (!batch_) {
      if (taken_ == 0 && begin_ == Loop::PassBegin::Begun) loop_->throw_no_batches(training_);
      return loop_->pass_ends();
    }
    ++taken_;
    loop_->step_begins(rows_of(*batch_));
  }

  /// False if the training has ended while it waited.
  bool take() {
    loop_->await_batch(*source_);
    if (!loop_->wants_step(training_)) return false;
    batch_ = source_->next();
    return true;
  }

  /// Of all workers; 0 where unknown.
  std::int64_t rows_of(const PerReplica<T>& batch) const {
    if (batch.batch_rows().all >= 0) return batch.batch_rows().all;
    if (loop_->strategy().num_workers() > 1) return 0;
    const lockstep::detail::StepRows rows = lockstep::detail::rows_of_step(batch);
    return std::accumulate(rows.here.begin(), rows.here.end(), std::int64_t{0});
  }

  Loop* loop_;
  lockstep::train::detail::BatchSource<T>* source_;
  bool training_;
  Loop::PassBegin begin_;
  std::int64_t taken_ = 0;
  std::optional<PerReplica<T>> batch_;
};

}  // namespace lockstep::train
