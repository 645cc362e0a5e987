#include "lockstep/data/distribute/distributed_cursor.h"

#include <algorithm>
#include <exception>
#include <functional>

#include "lockstep/base/logging.h"
#include "lockstep/data/distribute/distributed_input.h"
#include "lockstep/data/distribute/read_ahead.h"
#include "lockstep/data/distribute/step_source.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/data/stage_counters.h"
#include "lockstep/data/stage_meter.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/gpu.h"

namespace lockstep::data {
namespace {

constexpr const char* kSteps = "distributed steps\n";

/// Brings elements to the replicas' GPUs ahead of their use.
class DeviceCopies {
 public:
  /// `devices`: of each replica.
  explicit DeviceCopies(const std::vector<at::Device>& devices) {
    for (const at::Device& device : devices) {
      const auto known = static_cast<std::size_t>(std::ranges::find(devices, device) - devices.begin());
      if (known < streams_.size())
        streams_.push_back(streams_[known]);
      else
        streams_.push_back(device.is_cuda() ? gpu::make_copy_stream(device) : nullptr);
    }
  }

  void start(InputStep& step) {
    for (std::size_t k = 0; k < streams_.size() && k < step.elements.size(); ++k) {
      if (!streams_[k] || !step.elements[k]) continue;
      for (Component& component : step.elements[k]->components) {
        if (auto* tensor = std::get_if<at::Tensor>(&component)) *tensor = streams_[k]->copy(*tensor);
      }
    }
    for (std::size_t k = 0; k < streams_.size(); ++k) {
      const auto first = std::ranges::find(streams_, streams_[k]) - streams_.begin();
      if (streams_[k] && static_cast<std::size_t>(first) == k) step.arrivals.push_back(streams_[k]->mark());
    }
  }

  /// By the thread that the elements are for, before it gets them.
  static void finish(const InputStep& step) {
    if (step.arrivals.empty()) return;
    for (const auto& arrival : step.arrivals) arrival->await();
    for (const std::optional<Element>& element : step.elements) {
      if (!element) continue;
      for (const Component& component : element->components) {
        // The caller's stream waits for the replicas' when a run ends, so that it stands for all of them.
        if (const auto* tensor = std::get_if<at::Tensor>(&component)) gpu::keep_for_this_stream(*tensor);
      }
    }
  }

 private:
  /// Of each replica: those on one GPU share it. Null on a CPU; empty where elements stay where they are.
  std::vector<std::shared_ptr<gpu::CopyStream>> streams_;
};

using Clock = StageCounters::Clock;

std::int64_t rows_of_replicas(const InputStep& step) {
  std::int64_t rows = 0;
  for (const auto& element : step.elements)
    if (element && element->size() > 0) rows += rows_for_reports(*element);
  return rows;
}

/// A line for the distributed iterator itself on top of those of its pipelines' stages.
IterationContext measured(IterationContext context, const DistributedInputPtr& input) {
  if (!context.meter) return context;
  context.counters = context.meter->counters_of(
      input, {.kind = "distribute",
              .description = str("distribute over ", counted(input->cluster.replicas_per_worker, "replica"))});
  context.counters->buffer_size = input->buffer_size;
  return context;
}

/// Reads the steps of one pass from step `first` on and brings them to the replicas' devices. The first one without
/// elements is the last. After an error it goes on behind the step that failed.
std::function<std::optional<InputStep>()> steps_from(const DistributedInput& input, const IterationContext& context,
                                                     std::int64_t first) {
  std::shared_ptr<StepSource> source = input.make_source(context);
  if (first > 0) source->seek(first);
  return [source = std::move(source), copies = DeviceCopies(input.devices), counters = context.counters,
          ended = false]() mutable -> std::optional<InputStep> {
    if (ended) return std::nullopt;
    const auto start = counters ? Clock::now() : Clock::time_point();
    InputStep step = source->next();
    ended = step.local_values() == 0 && step.total.value_or(0) == 0;
    separate_replicas(step);
    copies.start(step);
    if (counters) StageCounters::add_time(counters->computing_ns, start);
    return step;
  };
}

/// Who only looks must not write the file of a cache, nor read one that others have written, and need not fill a buffer.
bool writes_or_buffers(const Stage& stage) {
  return stage.traits().cache == StageTraits::Cache::File || stage.traits().only_buffers;
}

}  // namespace

class DistributedCursor::Impl {
 public:
  Impl(DistributedInputPtr input, const PassOptions& options)
      : input_(std::move(input)),
        context_{.job_seed = options.job_seed.value_or(input_->job_seed),
                 .epoch = options.epoch ? *options.epoch : input_->passes->fetch_add(1),
                 .meter = options.meter},
        took_next_pass_(!options.epoch) {}

  std::optional<Values> read(bool partial_steps) {
    require_outside_replicas("get_next");
    if (stuck_) throw_unknown_batches();
    if (failed_ && !ahead_) std::rethrow_exception(failed_);
    if (ended_) return std::nullopt;
    Read next = ahead_ ? std::move(*ahead_) : read_and_tell(partial_steps);
    ahead_.reset();
    const bool complete = is_complete(next, partial_steps);
    std::optional<InputStep>& step = next.step;
    if (stuck_) throw_unknown_batches();
    if (!complete) {
      if (step && step->local_values() > 0 && !input_->whole_steps) warn_of_lost(*step);
      ended_ = true;
      return std::nullopt;
    }
    ++steps_;
    if (step) DeviceCopies::finish(*step);
    Values values(static_cast<std::size_t>(input_->cluster.replicas_per_worker));
    for (std::size_t k = 0; step && k < values.size(); ++k) {
      if (!step->elements[k]) continue;
      values[k] = std::move(*step->elements[k]);
      batch_rows_.here += std::max<std::int64_t>(common_rows(values[k]), 0);
    }
    if (input_->cluster.workers == 1) {
      batch_rows_ = {};
    } else {
      batch_rows_.place = {.pass = static_cast<std::int64_t>(context_.epoch), .step = steps_};
    }
    if (seen_.size() == 0 && !tells_all(input_->element_spec)) {
      const auto with_data = std::ranges::find_if(values, [](const Element& value) { return value.size() > 0; });
      if (with_data != values.end()) seen_ = without_rows(*with_data);
    }
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (values[k].size() > 0) continue;
      if (!knows_empty_batches()) {
        stuck_ = input_->cluster.workers > 1;  // it would be out of step
        if (stuck_) --steps_;
        throw_unknown_batches();
      }
      values[k] = empty_batch(input_->element_spec, seen_);
      if (k < input_->devices.size()) values[k] = moved_to(std::move(values[k]), input_->devices[k]);
    }
    // The workers agree on the next step while they compute this one. Its rows were being read during the one before.
    if (agrees(partial_steps) && input_->cluster.workers > 1 && input_->buffer_size > 0)
      ahead_ = read_and_tell(partial_steps);
    return values;
  }

  IteratorState state() {
    if (const auto obstacle = input_->position_obstacle()) throw_position_obstacle(*obstacle);
    reader();  // starting decides what a cache holds, which is part of the state
    Position kept;
    for (const StagePtr& pipeline : input_->pipelines) save_all_lasting(*pipeline, kept);
    return {kSteps + input_->fingerprint, context_.job_seed, context_.epoch, context_.path, steps_, kept.numbers()};
  }

  void load_state(const IteratorState& state) {
    if (state.pipeline != kSteps + input_->fingerprint) {
      throw InvalidArgument(
          errors::kPosition,
          {.what = "the state belongs to another distributed dataset",
           .where = "load_state",
           .seen = str("saved from\n", state.pipeline, "loaded into\n", input_->fingerprint),
           .help = "build the same dataset for the same number of replicas; Assignment::ByReplica allows "
                   "another number of workers"});
    }
    if (steps_ == 0 && std::exchange(took_next_pass_, false)) {
      std::uint64_t next = context_.epoch + 1;
      input_->passes->compare_exchange_strong(next, context_.epoch);  // nothing was read: the pass is free again
    }
    ahead_.reset();
    source_ = nullptr;
    ended_ = stuck_ = false;
    failed_ = unplaced_ = unseen_because_ = nullptr;
    try {
      Position kept = Position::of(state.position);
      for (const StagePtr& pipeline : input_->pipelines) restore_all_lasting(*pipeline, kept);
    } catch (...) {
      unplaced_ = std::current_exception();  // some of the pipelines may have taken it over
      throw;
    }
    context_.job_seed = state.job_seed;
    context_.epoch = state.epoch;
    context_.path = state.path;
    context_.is_resumed = true;
    steps_ = state.consumed;
    // The next pass is the one behind the resumed pass, as if there had been no interruption.
    std::uint64_t passes = input_->passes->load();
    while (passes <= state.epoch && !input_->passes->compare_exchange_weak(passes, state.epoch + 1)) {
    }
  }

  const DistributedInput& input() const { return *input_; }
  const BatchRows& batch_rows() const { return batch_rows_; }

 private:
  /// A step that was read, and what all workers have for it.
  struct Read {
    std::optional<InputStep> step;
    std::exception_ptr error;            ///< in its place
    std::function<StepTotals()> totals;  ///< none where this worker knows by itself
  };

  /// What reads the steps ahead; started when it is first needed.
  ReadAhead<InputStep>& reader() {
    if (unplaced_) std::rethrow_exception(unplaced_);
    if (source_) return *source_;
    const IterationContext context = measured(context_, input_);
    counters_ = context.counters;
    source_ = std::make_unique<ReadAhead<InputStep>>(steps_from(*input_, context, steps_),
                                                     static_cast<std::size_t>(input_->buffer_size));
    return *source_;
  }

  std::optional<InputStep> read_step() {
    ReadAhead<InputStep>& source = reader();
    const auto begun = counters_ ? counters_->begin_request() : Clock::time_point();
    if (counters_ && input_->buffer_size > 0)
      counters_->buffer(source.ready(), static_cast<std::size_t>(input_->buffer_size));
    std::optional<InputStep> step;
    try {
      step = source.next();
    } catch (...) {
      // One worker goes on behind the step that failed; with several, this one would be out of step.
      if (input_->cluster.workers == 1)
        ++steps_;
      else
        failed_ = std::current_exception();
      throw;
    }
    const bool has_data = step && step->local_values() > 0;
    if (counters_) counters_->end_request(begun, has_data ? std::optional(rows_of_replicas(*step)) : std::nullopt);
    return step;
  }

  bool agrees(bool partial_steps) const { return partial_steps && input_->agreement != nullptr; }
  /// Reads the next step. Where workers have to agree on it, begins to tell the others.
  Read read_and_tell(bool partial_steps) {
    Read read;
    try {
      read.step = read_step();
    } catch (...) {
      // Whoever waits for this worker must be told, once the step is asked for.
      if (!agrees(partial_steps) || input_->cluster.workers == 1) throw;
      read.error = std::current_exception();
    }
    const bool is_known = read.step && read.step->total;
    if (agrees(partial_steps) && !is_known) read.totals = input_->agreement(totals_here(read));
    return read;
  }

  StepTotals totals_here(const Read& read) {
    const ClusterShape& cluster = input_->cluster;
    if (read.error) return {.failed = 1, .failed_ids = cluster.worker};
    StepTotals mine{.empty = cluster.replicas_per_worker};
    for (std::size_t k = 0; read.step && k < read.step->elements.size(); ++k) {
      const auto& element = read.step->elements[k];
      if (!element) continue;
      ++mine.values;
      const std::int64_t rows = common_rows(*element);
      if (rows != 0) --mine.empty;
      rows < 0 ? ++mine.unclear : mine.rows += rows;
    }
    mine.helpless = mine.values == 0 && cluster.workers > 1 && !knows_empty_batches() ? 1 : 0;
    return mine;
  }

  /// Whether there is a step, as all workers agree.
  bool is_complete(Read& read, bool partial_steps) {
    const ClusterShape& cluster = input_->cluster;
    const auto& step = read.step;
    const bool is_known = step && step->total, is_told = read.totals != nullptr;
    batch_rows_ = is_known ? step->rows : BatchRows{};
    StepTotals all{.values = is_known ? *step->total : step ? step->local_values() : 0};
    if (is_told) {
      all = read.totals();
      read.totals = nullptr;
      if (read.error || all.failed > 0) fail_together(read, all);
      stuck_ = all.helpless > 0 && all.values > 0 && !input_->whole_steps;  // if no worker has data it does not matter
      if (all.unclear == 0) batch_rows_ = {.all = all.rows, .has_empty = all.empty > 0};
    }
    // Endless data is not counted together: there this worker's replicas are all that is known.
    const int replicas = is_known || is_told ? cluster.replicas() : cluster.replicas_per_worker;
    return has_step(partial_steps && !input_->whole_steps, static_cast<int>(all.values), replicas, all.values);
  }

  void warn_of_lost(const InputStep& step) const {
    say_warning(str("distribute: the last step is left out, because only ", step.local_values(), " of ",
                    counted(input_->cluster.replicas_per_worker, "replica"),
                    " have an element. Make the number of elements a multiple of that, or loop with "
                    "get_next_as_optional."));
  }

  [[noreturn]] void fail_together(const Read& read, const StepTotals& all) {
    const std::string who =
        all.failed == 1 ? str("worker ", all.failed_ids) : str(counted(static_cast<int>(all.failed), "worker"));
    failed_ =
        read.error
            ? read.error
            : std::make_exception_ptr(FailedPrecondition(
                  errors::kPeerFailed, {.what = str(who, " could not read the next step of a distributed dataset"),
                                        .where = str("step ", steps_, ", seen by worker ", input_->cluster.worker),
                                        .help = "fix the cause that the error on that worker names"}));
    std::rethrow_exception(failed_);
  }

  bool knows_empty_batches() {
    if (tells_all(input_->element_spec)) return true;
    if (seen_.size() == 0) seen_ = first_without_rows();
    return seen_.size() > 0;
  }

  [[noreturn]] void throw_unknown_batches() const {
    // Who reads all rows tells what the workers tell that had some of them.
    if (unseen_because_ && !input_->agreement) std::rethrow_exception(unseen_because_);
    throw FailedPrecondition(
        errors::kSignature,
        {.what = "a worker has no data, and what its empty batches should look like is not known",
         .where = str("step ", steps_, ", worker ", input_->cluster.worker, " of ", input_->cluster.workers),
         .seen = str("elements of ", to_string(input_->element_spec)),
         .help = "give `spec` to the map, flat_map or generator that makes the elements, or every worker some data"});
  }

  /// A worker that has had no row of its own may still read the pipeline that all workers read, or the files of others,
  /// if that can be read twice. Does not throw: the other workers wait for what this one finds.
  Element first_without_rows() {
    std::vector<StagePtr> known = input_->pipelines;
    if (input_->everything) known.push_back(input_->everything);
    for (const StagePtr& pipeline : known) {
      if (find_position_obstacle(*pipeline)) continue;
      try {
        const IteratorPtr elements = without_stages(pipeline, writes_or_buffers)->iterate(context_.unmeasured());
        constexpr int kTries = 100;  // there may be no end of failing rows
        Place place;
        for (int k = 0; k < kTries && place.read(*elements); ++k) {
          if (!place.error && place.element.size() > 0) return without_rows(place.element);
          if (!unseen_because_) unseen_because_ = place.error;
        }
      } catch (...) {
        continue;  // it may be readable for others only
      }
    }
    return {};
  }

  DistributedInputPtr input_;
  IterationContext context_;
  bool took_next_pass_;
  std::int64_t steps_ = 0;
  bool ended_ = false;
  std::optional<Read> ahead_;          ///< the next step, where workers agree on it while they compute this one
  BatchRows batch_rows_;               ///< of this one
  std::exception_ptr failed_;          ///< why there are no more steps on any worker
  bool stuck_ = false;                 ///< some worker does not know what its empty batches should look like
  Element seen_;                       ///< some element without its rows, for dummies where the spec says too little
  std::exception_ptr unplaced_;        ///< why the last state could not be loaded, or not all of it
  std::exception_ptr unseen_because_;  ///< what every element that was looked at for that has thrown
  std::shared_ptr<StageCounters> counters_;
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
const BatchRows& DistributedCursor::batch_rows() const { return impl_->batch_rows(); }
IteratorState DistributedCursor::state() const { return impl_->state(); }
void DistributedCursor::load_state(const IteratorState& state) { impl_->load_state(state); }
DistributedSpec DistributedCursor::spec() const { return impl_->input().spec(); }
DistributedSpec DistributedCursor::optional_spec() const { return impl_->input().optional_spec(); }

DistributedSpec spec_of(const DistributedInput& input) { return input.spec(); }
Cardinality steps_of(const DistributedInput& input) { return input.steps; }
bool handles_partial_steps(const DistributedInput& input) { return input.partial_steps; }
const std::string& plan_of(const DistributedInput& input) { return input.plan; }

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
