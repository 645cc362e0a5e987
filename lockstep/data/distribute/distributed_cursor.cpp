#include "lockstep/data/distribute/distributed_cursor.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <functional>

#include "lockstep/base/logging.h"
#include "lockstep/data/distribute/device_copies.h"
#include "lockstep/data/distribute/distributed_input.h"
#include "lockstep/data/distribute/empty_batches.h"
#include "lockstep/data/distribute/read_ahead.h"
#include "lockstep/data/distribute/step_agreement.h"
#include "lockstep/data/distribute/step_source.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/data/stage_counters.h"
#include "lockstep/data/stage_meter.h"
#include "lockstep/strategy/context.h"

namespace lockstep::data {
namespace {

constexpr const char* kSteps = "distributed steps\n";

using Clock = StageCounters::Clock;

std::int64_t rows_of_replicas(const InputStep& step) {
  std::int64_t rows = 0;
  for (const auto& element : step.elements)
    if (element && element->size() > 0) rows += rows_for_reports(*element);
  return rows;
}

/// Adds a line for the distributed iterator above the lines of its pipelines' stages.
IterationContext measured(IterationContext context, const DistributedInputPtr& input) {
  if (!context.meter) return context;
  context.counters = context.meter->counters_of(
      input, {.kind = "distribute",
              .description = str("distribute over ", counted(input->cluster.replicas_per_worker, "replica"))});
  context.counters->buffer_size = input->buffer_size;
  return context;
}

/// Reads the steps of one pass and copies them to the replicas' GPUs. The first one without elements is the last. After
/// an error it continues after the failed step.
std::function<std::optional<InputStep>()> steps_of(const DistributedInput& input, const IterationContext& context,
                                                   std::shared_ptr<StepSource> source) {
  return [source = std::move(source), copies = DeviceCopies::for_gpus_among(input.devices), counters = context.counters,
          ended = false]() mutable -> std::optional<InputStep> {
    if (ended) return std::nullopt;
    const auto start = counters ? Clock::now() : Clock::time_point();
    InputStep step = source->next();
    ended = step.is_last();
    if (copies) copies->start(step);
    if (counters) StageCounters::add_time(counters->computing_ns, start);
    return step;
  };
}

}  // namespace

class DistributedCursor::Impl {
 public:
  Impl(DistributedInputPtr input, const PassOptions& options)
      : input_(std::move(input)),
        empty_(input_),
        context_{.job_seed = options.job_seed.value_or(input_->job_seed),
                 .epoch = options.epoch ? *options.epoch : input_->passes->fetch_add(1),
                 .meter = options.meter},
        took_next_pass_(!options.epoch) {}

  std::optional<Values> read(bool partial_steps) {
    require_outside_replicas("get_next");
    if (stuck_) empty_.throw_unknown(steps_);
    if (failed_ && !ahead_) std::rethrow_exception(failed_);
    if (ended_) return std::nullopt;
    std::optional<InputStep> step;
    StepVerdict verdict;
    if (ahead_ || agrees(partial_steps)) {
      verdict = read_agreed(step, partial_steps);
    } else {
      step = read_step();
      verdict = judge_step(*input_, step, std::nullopt, partial_steps);
    }
    stuck_ = verdict.is_stuck;
    if (stuck_) empty_.throw_unknown(steps_);
    if (!verdict.exists) {
      if (step && step->local_values() > 0 && !input_->whole_steps) warn_of_lost(*step);
      ended_ = true;
      return std::nullopt;
    }
    ++steps_;
    Values values = values_of(std::move(step), verdict.rows);
    // Workers agree on the next step while they compute this one. Its rows were read during the previous one.
    if (agrees(partial_steps) && input_->cluster.workers > 1 && input_->buffer_size > 0) ahead_ = read_and_offer();
    return values;
  }

  bool wait_for(std::chrono::milliseconds limit) {
    if (stuck_ || failed_ || ended_ || ahead_) return true;
    try {
      if (!source_) start();
    } catch (...) {
      return true;  // `next` meets the error again, and reports it to the other workers
    }
    return source_->wait_for(limit);
  }

  IteratorState state() {
    if (const auto obstacle = input_->position_obstacle()) throw_position_obstacle(*obstacle);
    if (!source_) start();  // settles the origin of caches, which is part of the state
    Position kept;
    for (const StagePtr& pipeline : input_->pipelines) save_pass_states(*pipeline, kept);
    rows_->locate(steps_, kept);
    return {kSteps + input_->fingerprint, context_.job_seed, context_.epoch, context_.path, steps_, kept.numbers()};
  }

  void check_state(const IteratorState& state) const {
    if (state.pipeline != kSteps + input_->fingerprint) {
      throw InvalidArgument(
          errors::kPosition,
          {.what = "the state belongs to another distributed dataset",
           .where = "load_state",
           .seen = str("saved from\n", state.pipeline, "loaded into\n", input_->fingerprint),
           .help = "build the same dataset for the same number of replicas; Assignment::ByReplica allows "
                   "another number of workers"});
    }
  }

  void load_state(const IteratorState& state) {
    check_state(state);
    if (steps_ == 0 && std::exchange(took_next_pass_, false)) {
      std::uint64_t next = context_.epoch + 1;
      input_->passes->compare_exchange_strong(next, context_.epoch);  // nothing was read: the pass is available again
    }
    ahead_.reset();
    source_ = nullptr;
    place_.reset();
    ended_ = stuck_ = false;
    failed_ = unplaced_ = nullptr;
    empty_.forget_failures();
    try {
      Position kept = Position::of(state.position);
      for (const StagePtr& pipeline : input_->pipelines) restore_pass_states(*pipeline, kept);
      place_ = std::move(kept);
    } catch (...) {
      unplaced_ = std::current_exception();  // some of the pipelines may have adopted it
      throw;
    }
    context_.job_seed = state.job_seed;
    context_.epoch = state.epoch;
    context_.path = state.path;
    context_.is_resumed = true;
    steps_ = state.consumed;
    // The next pass follows the resumed one, as if there had been no interruption.
    std::uint64_t passes = input_->passes->load();
    while (passes <= state.epoch && !input_->passes->compare_exchange_weak(passes, state.epoch + 1)) {
    }
  }

  void go_back_to(const IteratorState& state) {
    load_state(state);
    input_->passes->store(state.epoch + 1);
  }

  const DistributedInput& input() const { return *input_; }
  const BatchRows& batch_rows() const { return batch_rows_; }

 private:
  /// The values of a step, one per replica: those without data get an empty batch.
  Values values_of(std::optional<InputStep> step, const BatchRows& rows) {
    Values values(static_cast<std::size_t>(input_->cluster.replicas_per_worker));
    if (step && !step->arrivals.empty()) DeviceCopies::finish(*step);
    for (std::size_t k = 0; step && k < values.size(); ++k)
      if (step->elements[k]) values[k] = std::move(*step->elements[k]);
    if (input_->cluster.workers > 1) note_rows(values, rows);
    if (!empty_.are_told()) empty_.learn_from(values);
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (values[k].size() > 0) continue;
      if (!empty_.are_known(context_)) {
        stuck_ = input_->cluster.workers > 1;  // it would be out of step
        if (stuck_) --steps_;
        empty_.throw_unknown(steps_);
      }
      values[k] = empty_.make(k);
    }
    return values;
  }

  void note_rows(const Values& values, const BatchRows& rows) {
    batch_rows_ = rows;
    batch_rows_.place = {.pass = static_cast<std::int64_t>(context_.epoch), .step = steps_};
    for (const Element& value : values) batch_rows_.here += std::max<std::int64_t>(common_rows(value), 0);
  }

  /// Starts reading ahead when the first step is needed.
  void start() {
    if (unplaced_) std::rethrow_exception(unplaced_);
    const IterationContext context = measured(context_, input_);
    counters_ = context.counters;
    rows_ = input_->make_source(context);
    if (place_) {
      Position place = *place_;
      rows_->restore(steps_, place);
    }
    source_ = std::make_unique<ReadAhead<InputStep>>(steps_of(*input_, context, rows_),
                                                     static_cast<std::size_t>(input_->buffer_size), [] {
                                                       prepare_pipeline_thread("ls-input");
                                                       c10::GradMode::set_enabled(true);  // as in the caller's thread
                                                     });
  }

  std::optional<InputStep> read_step() {
    if (!source_) start();
    const auto begun = counters_ ? counters_->begin_request() : Clock::time_point();
    if (counters_ && input_->buffer_size > 0)
      counters_->buffer(source_->ready(), static_cast<std::size_t>(input_->buffer_size));
    std::optional<InputStep> step;
    try {
      step = source_->next();
    } catch (...) {
      // A single worker continues after the failed step; among several, this one would be out of step.
      if (input_->cluster.workers == 1)
        ++steps_;
      else
        failed_ = std::current_exception();
      throw;
    }
    if (counters_) {
      const bool has_data = step && step->local_values() > 0;
      counters_->end_request(begun, has_data ? std::optional(rows_of_replicas(*step)) : std::nullopt);
    }
    return step;
  }

  bool agrees(bool partial_steps) const { return partial_steps && input_->agreement != nullptr; }

  /// The next step, and how many of its values and rows all workers have.
  StepVerdict read_agreed(std::optional<InputStep>& step, bool partial_steps) {
    OfferedStep offered = ahead_ ? std::move(*ahead_) : read_and_offer();
    ahead_.reset();
    std::optional<StepTotals> all;
    if (offered.totals) {
      all = offered.totals();
      if (offered.error || all->failed > 0) {
        failed_ = common_failure(offered, *all, input_->cluster, steps_);
        std::rethrow_exception(failed_);
      }
    }
    step = std::move(offered.step);
    return judge_step(*input_, step, all, partial_steps);
  }

  /// Reads the next step, and reports it to the other workers.
  OfferedStep read_and_offer() {
    OfferedStep read;
    try {
      read.step = read_step();
    } catch (...) {
      // The other workers are waiting: report the failure to them first; the program gets it when it requests the step.
      if (input_->cluster.workers == 1) throw;
      read.error = std::current_exception();
    }
    if (!read.step || !read.step->total)
      read.totals = input_->agreement(totals_of(read, input_->cluster, [&] { return empty_.are_known(context_); }));
    return read;
  }

  void warn_of_lost(const InputStep& step) const {
    say_warning(str("distribute: the last step is left out, because only ", step.local_values(), " of ",
                    counted(input_->cluster.replicas_per_worker, "replica"),
                    " have an element. Make the number of elements a multiple of that, or loop with "
                    "get_next_as_optional."));
  }

  DistributedInputPtr input_;
  EmptyBatches empty_;
  IterationContext context_;
  bool took_next_pass_;
  std::int64_t steps_ = 0;
  bool ended_ = false;
  std::optional<OfferedStep> ahead_;  ///< the next step, if workers agree on it while they compute this one
  BatchRows batch_rows_;              ///< rows of the current step
  std::exception_ptr failed_;         ///< why there are no more steps on any worker
  bool stuck_ = false;                ///< some worker does not know the shape of empty batches
  std::exception_ptr unplaced_;       ///< why the last state could not be loaded in full
  std::shared_ptr<StageCounters> counters_;
  std::optional<Position> place_;     ///< where the pass was resumed; none: at the beginning
  std::shared_ptr<StepSource> rows_;  ///< read by `source_`; may be located while it is read
  std::unique_ptr<ReadAhead<InputStep>> source_;
};

DistributedCursor::DistributedCursor(DistributedInputPtr input, const PassOptions& options)
    : impl_(std::make_unique<Impl>(std::move(input), options)) {}
DistributedCursor::DistributedCursor(DistributedCursor&&) noexcept = default;
DistributedCursor& DistributedCursor::operator=(DistributedCursor&&) noexcept = default;
DistributedCursor::~DistributedCursor() = default;

std::optional<DistributedCursor::Values> DistributedCursor::next() { return impl_->read(impl_->input().partial_steps); }
std::optional<DistributedCursor::Values> DistributedCursor::next_as_optional() {
  return impl_->read(!impl_->input().cardinality.is_infinite());
}
bool DistributedCursor::wait_for(std::chrono::milliseconds limit) { return impl_->wait_for(limit); }
const BatchRows& DistributedCursor::batch_rows() const { return impl_->batch_rows(); }
IteratorState DistributedCursor::state() const { return impl_->state(); }
void DistributedCursor::load_state(const IteratorState& state) { impl_->load_state(state); }
void DistributedCursor::go_back_to(const IteratorState& state) { impl_->go_back_to(state); }
void DistributedCursor::check_state(const IteratorState& state) const { impl_->check_state(state); }
DistributedSpec DistributedCursor::spec() const { return impl_->input().spec(); }
DistributedSpec DistributedCursor::optional_spec() const { return impl_->input().optional_spec(); }

DistributedSpec spec_of(const DistributedInput& input) { return input.spec(); }
Cardinality steps_of(const DistributedInput& input) { return input.steps; }
bool handles_partial_steps(const DistributedInput& input) { return input.partial_steps; }
const std::string& plan_of(const DistributedInput& input) { return input.plan; }
std::optional<std::string> position_obstacle_of(const DistributedInput& input) { return input.position_obstacle(); }

DistributedInputPtr only_whole_steps(const DistributedInputPtr& input) {
  auto changed = std::make_shared<DistributedInput>(*input);
  changed->whole_steps = true;
  return changed;
}

void require_outside_replicas(const char* operation) {
  if (!in_replica_context() || !has_strategy()) return;
  throw InvalidArgument(errors::kWrongContext, {.what = str(operation, " was called inside a replica"),
                                                .help = "call it before run and give the step to run as an argument"});
}

void throw_no_more_data() {
  throw OutOfRange(errors::kNoMoreData, {.what = "the distributed dataset has no more steps",
                                         .where = "get_next",
                                         .help = "loop over the dataset, or use get_next_as_optional"});
}

}  // namespace lockstep::data
