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
#include "lockstep/base/function_ref.h"
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
  int epochs = 1;         ///< the number after that of the last epoch
  int initial_epoch = 0;  ///< number of the first epoch, from 0
  /// Training steps in an epoch; default: one pass over the data. If set, the next epoch continues in the data where this one
  /// stopped, and at the end of the data a new pass starts. If an epoch has several training passes, they share these steps; a pass
  /// for which none is left is an error.
  std::optional<std::int64_t> steps_per_epoch = {};
  std::vector<std::shared_ptr<Callback>> callbacks = {};  ///< called in this order
  std::vector<MetricPtr> metrics = {};                    ///< measured by `update` in each step
  std::vector<LearningRate> optimizers = {};  ///< `{optimizer}`: callbacks and the schedule set their learning rates
  Schedule schedule = {};                     ///< sets the learning rate before each step
  std::vector<NamedState> parts = {};         ///< model, optimizer and so on, to save in checkpoints
  Verbose verbose = Verbose::Auto;            ///< of the chief; other workers print nothing
  std::ostream* out = nullptr;                ///< where to print progress; default: standard output
  Resume resume = {};                         ///< continues the loop, with `parts`, from a checkpoint
  /// Allows data whose position cannot be saved. A resumed loop then reads and drops the batches before its position, which may not be
  /// the same ones.
  bool inexact_resume = false;
  /// With a callback that writes checkpoints, SIGTERM to any worker makes all workers save after the same step. Then each calls this
  /// and the loop ends; without it the process exits with status 143.
  std::function<void()> on_sigterm = {};
};

template <class T>
class Steps;

/// The epochs of a training, for a loop of your own with the metrics, progress, callbacks and checkpoints of `fit`, which is built
/// on it.
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
/// Every worker must run the same loop, outside of run.
class LOCKSTEP_EXPORT Loop {
 public:
  Loop(Strategy& strategy, LoopOptions options);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Ends the epoch that is open and begins the next one; false when the training has ended.
  bool next_epoch();
  /// The training steps of this epoch: a range of PerReplica batches. A step ends when the loop asks for the next batch: then it is
  /// counted and callbacks are called, so a step that you leave by `break` does not count. If an epoch has several passes, their
  /// values need different names: InvalidArgument otherwise.
  template <class T>
  Steps<T> steps(const Batches<T>& batches) {
    return Steps<T>(*this, batches, /*training=*/true);
  }
  /// Calls `validation_begins` of the callbacks. Optional; call it before you put the model into evaluation mode.
  void begin_validation();
  /// A pass over all of `batches`, after the training steps. Values that it adds to the meters are reported as "val_...".
  template <class T>
  Steps<T> validation_steps(const Batches<T>& batches) {
    return Steps<T>(*this, batches, /*training=*/false);
  }

  /// Add to them inside run.
  Meters& meters();
  const Training& training() const;
  const History& history() const;
  Strategy& strategy() const;
  /// Ends the training after this step. Every worker must call it at the same step. Callbacks return {.stop = true} instead.
  void stop(const std::string& reason);
  /// Throws FailedPrecondition, naming the stage that prevents it, if the loop writes checkpoints but could not resume these batches
  /// exactly. The first pass over them throws the same.
  template <class T>
  void require_resumable(const Batches<T>& batches, bool training = true) {
    if (batches) require_place(batches.source(training));
  }

 private:
  template <class T>
  friend class Steps;

  enum class PassBegin { Begun, TakenUp, PassedOver };
  PassBegin begin_pass(bool training, detail::PassSource* batches);
  /// Begins a step with what `take` has taken from the batches: it returns the rows of the batch, or -1 at the end of the data. False
  /// at the end of the pass. `is_first`: a pass that ends here had no batches.
  bool begin_step(bool training, detail::PassSource& batches, bool is_first, FunctionRef<std::int64_t()> take);
  void end_step();
  void require_place(detail::PassSource& batches);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The steps of an epoch, for a range-based `for`.
template <class T>
class Steps {
 public:
  Steps(Loop& loop, const Batches<T>& batches, bool training)
      : loop_(&loop), source_(batches ? &batches.source(training) : nullptr), training_(training) {
    begin_ = loop.begin_pass(training, source_);
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
      steps_->loop_->end_step();
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
    const bool is_first = std::exchange(begin_, Loop::PassBegin::TakenUp) == Loop::PassBegin::Begun;
    loop_->begin_step(training_, *source_, is_first, [&] {
      batch_ = source_->next();
      return batch_ ? rows_of(*batch_) : -1;
    });
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
  std::optional<PerReplica<T>> batch_;
};

}  // namespace lockstep::train
