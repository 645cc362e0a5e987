#include "lockstep/data/distribute/distributed_input.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/row_stream.h"
#include "lockstep/data/distribute/separate_replicas.h"
#include "lockstep/data/stage_meter.h"
#include "lockstep/data/stages/cache.h"
#include "lockstep/strategy/context.h"

namespace lockstep::data {
namespace {

constexpr const char* kSteps = "distributed steps\n";

ElementSpec with_open_rows(const ElementSpec& spec) {
  return spec.mapped([](const ComponentSpec& component) {
    ComponentSpec open = component;
    open.shape = component.shape.with_dim0(PartialShape::kUnknown);
    return open;
  });
}

Element moved_to(Element element, const at::Device& device) {
  for (Component& component : element.components) {
    if (auto* tensor = std::get_if<at::Tensor>(&component)) *tensor = tensor->to(device, /*non_blocking=*/true);
  }
  return element;
}

void move_to_devices(InputStep& step, const std::vector<at::Device>& devices) {
  for (std::size_t k = 0; k < devices.size() && k < step.elements.size(); ++k) {
    if (step.elements[k] && !devices[k].is_cpu()) step.elements[k] = moved_to(std::move(*step.elements[k]), devices[k]);
  }
}

DistributedInputPtr checked(DistributedInputPtr input, const IteratorState& state) {
  if (state.pipeline != kSteps + input->fingerprint) {
    throw InvalidArgument(
        errors::kPosition,
        {.what = "the saved position belongs to another distributed dataset",
         .where = "resume",
         .seen = str("saved from\n", state.pipeline, "restored into\n", input->fingerprint),
         .help = "build the same dataset for the same number of replicas; Assignment::ByReplica allows "
                 "another number of workers"});
  }
  Position kept = Position::of(state.position);
  for (const StagePtr& pipeline : input->pipelines) restore_all_lasting(*pipeline, kept);
  return input;
}

/// How many steps pipelines of per-replica batches make. Nobody knows those of other workers.
Cardinality steps_of_pipelines(const std::vector<StagePtr>& pipelines, const ClusterShape& cluster, bool one_for_each,
                               bool partial_steps) {
  const Cardinality first = pipelines.front()->cardinality();
  if (cluster.workers > 1) return first.is_infinite() ? first : Cardinality::unknown();
  if (!one_for_each) {
    const std::int64_t replicas = cluster.replicas_per_worker;
    return first.is_known() ? Cardinality((first.value() + (partial_steps ? replicas - 1 : 0)) / replicas) : first;
  }
  // Until the last one ends, or the first.
  Cardinality steps = first;
  for (const StagePtr& pipeline : pipelines) {
    const Cardinality mine = pipeline->cardinality();
    if (mine.is_unknown() || steps.is_unknown()) return Cardinality::unknown();
    const bool longer = mine.is_infinite() || (steps.is_known() && mine.value() > steps.value());
    if (longer == partial_steps) steps = mine;
  }
  return steps;
}

using Clock = std::chrono::steady_clock;

std::int64_t nanoseconds_since(Clock::time_point start) {
  return std::chrono::nanoseconds(Clock::now() - start).count();
}

/// What workers add to their number of values if they cannot make empty batches; more than any number of replicas.
constexpr std::int64_t kHelpless = std::int64_t{1} << 40;

std::int64_t rows_of_replicas(const InputStep& step) {
  std::int64_t rows = 0;
  for (const auto& element : step.elements) {
    if (!element || element->size() == 0) continue;
    const Component& first = element->components.front();
    const auto* tensor = std::get_if<at::Tensor>(&first);
    const auto* strings = std::get_if<Strings>(&first);
    rows += tensor && tensor->dim() > 0 ? tensor->size(0) : strings ? strings->size() : 1;
  }
  return rows;
}

/// A line for the distributed iterator itself on top of those of its pipelines' stages.
IterationContext measured(IterationContext context, const DistributedInputPtr& input) {
  if (!context.meter) return context;
  context.counters = context.meter->counters_of(
      input, "distribute", str("distribute over ", counted(input->cluster.replicas_per_worker, "replica")));
  context.counters->buffer_size = input->buffer_size;
  return context;
}

/// What StepReader throws in place of a step.
struct StepFailed {
  std::exception_ptr error;
  std::int64_t position;  ///< the step that is read next
};

/// Reads the steps of one pass and brings them to the replicas' devices. The first one without elements is the last.
/// After an error it goes on behind the step that failed; where other workers would be out of step, the error is thrown
/// again.
class StepReader {
 public:
  StepReader(DistributedInputPtr input, const IterationContext& context, std::int64_t steps)
      : input_(std::move(input)), counters_(context.counters), number_(steps), source_(input_->make_source(context)) {
    if (number_ > 0) source_->seek(number_);
  }

  std::optional<InputStep> next() {
    if (ended_) return std::nullopt;
    if (failure_) throw StepFailed{failure_, number_};
    const auto start = counters_ ? Clock::now() : Clock::time_point();
    try {
      InputStep step = source_->next();
      ended_ = step.local_values() == 0 && step.total.value_or(0) == 0;
      separate_replicas(step);
      move_to_devices(step, input_->devices);
      ++number_;
      if (counters_) counters_->computing_ns.fetch_add(nanoseconds_since(start), std::memory_order_relaxed);
      return step;
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      if (input_->cluster.workers == 1)
        ++number_;
      else
        failure_ = error;
      throw StepFailed{error, number_};
    }
  }

 private:
  DistributedInputPtr input_;
  std::shared_ptr<StageCounters> counters_;  ///< null: nobody measures
  std::int64_t number_;                      ///< of the step to be read
  std::unique_ptr<StepSource> source_;
  std::exception_ptr failure_;  ///< of one of several workers
  bool ended_ = false;
};

}  // namespace

DistributedSpec DistributedInput::spec() const {
  const bool plain = cluster.workers == 1 && cluster.replicas_per_worker == 1;
  return {plain ? 0 : cluster.replicas_per_worker, element_spec};
}

DistributedSpec DistributedInput::optional_spec() const {
  const DistributedSpec known = spec();
  return cardinality.is_infinite() ? known : DistributedSpec{known.per_replica, with_open_rows(known.element)};
}

std::optional<std::string> DistributedInput::position_obstacle() const {
  for (const StagePtr& pipeline : pipelines)
    if (auto obstacle = find_position_obstacle(*pipeline)) return obstacle;
  return std::nullopt;
}

DistributedInput distributed_by_plan(const InputPlan& plan) {
  DistributedInput input{.cluster = plan.cluster,
                         .partial_steps = plan.partial_steps,
                         .cardinality = plan.cardinality,
                         .steps = plan.steps(),
                         .element_spec = plan.element_spec,
                         .fingerprint = plan.fingerprint(),
                         .pipelines = {plan.is_one_stream() ? plan.pipeline : plan.stream},
                         .everything = plan.everything,
                         .plan = [plan] { return to_string(plan); }};
  if (plan.assignment == Assignment::ByReplica) input.agreement = nullptr;
  input.make_source = [plan](const IterationContext& context) { return plan.make_source(context); };
  return input;
}

DistributedInput distributed_pipelines(const std::vector<StagePtr>& pipelines, const ClusterShape& cluster,
                                       bool one_for_each) {
  DistributedInput input{.cluster = cluster, .cardinality = pipelines.at(0)->cardinality()};
  input.element_spec = pipelines.front()->element_spec();
  for (const StagePtr& pipeline : pipelines) {
    input.element_spec = input.element_spec.merged_with(pipeline->element_spec());
    // Only if no pipeline ends can nobody be left without data.
    if (input.cardinality.is_infinite()) input.cardinality = pipeline->cardinality();
  }
  input.partial_steps =
      handles_partial_steps({static_shapes(input.element_spec), input.cardinality.is_infinite()}, cluster.workers);
  input.steps = steps_of_pipelines(pipelines, cluster, one_for_each, input.partial_steps);
  if (cluster.replicas() > 1 && input.partial_steps) input.element_spec = with_open_rows(input.element_spec);
  input.fingerprint = str("pipelines of a function, worker ", cluster.worker, " of ", cluster.workers, ", ",
                          counted(cluster.replicas_per_worker, "replica"), " each\n");
  input.pipelines = pipelines;
  for (const StagePtr& pipeline : pipelines) input.fingerprint += data::fingerprint(*pipeline);
  input.plan = [text = str(counted(cluster.workers, "worker"), " of ", counted(cluster.replicas_per_worker, "replica"),
                           ", batches from a function\nworker ", cluster.worker, " of ", cluster.workers, ": ",
                           one_for_each ? "a pipeline for each replica\n"
                                        : "one pipeline, elements to replicas in turn\n")] { return text; };
  input.make_source = [pipelines, one_for_each, cluster](const IterationContext& context) {
    return one_for_each ? one_stream_each(pipelines, context)
                        : deal_in_turn(pipelines.front(), cluster.replicas_per_worker, context);
  };
  return input;
}

DistributedCursor::DistributedCursor(DistributedInputPtr input, IterationContext context, std::int64_t steps)
    : input_(std::move(input)), context_(measured(std::move(context), input_)), steps_(steps) {
  const auto reader = std::make_shared<StepReader>(input_, context_, steps_);
  counters_ = context_.counters;
  context_ = unmeasured(context_);
  source_ = std::make_unique<ReadAhead<InputStep>>([reader] { return reader->next(); },
                                                   static_cast<std::size_t>(input_->buffer_size));
}

DistributedCursor::DistributedCursor(DistributedInputPtr input, const PassOptions& options)
    : DistributedCursor(input,
                        {.job_seed = options.job_seed.value_or(input->job_seed),
                         .epoch = options.epoch ? *options.epoch : input->passes->fetch_add(1),
                         .meter = options.meter},
                        0) {}

DistributedCursor::DistributedCursor(DistributedInputPtr input, const IteratorState& state,
                                     std::shared_ptr<StageMeter> meter)
    : DistributedCursor(checked(std::move(input), state),
                        {.job_seed = state.job_seed,
                         .epoch = state.epoch,
                         .path = state.path,
                         .meter = std::move(meter),
                         .is_resumed = true},
                        state.consumed) {
  detail::go_on_after(*input_->passes, state.epoch);
}

IteratorState DistributedCursor::save() const {
  if (const auto obstacle = input_->position_obstacle()) {
    throw FailedPrecondition(errors::kPosition, {.what = "the position in this dataset cannot be saved exactly",
                                                 .where = *obstacle,
                                                 .help = "use an ordered, repeatable stage in its place"});
  }
  Position kept;
  for (const StagePtr& pipeline : input_->pipelines) save_all_lasting(*pipeline, kept);
  return {kSteps + input_->fingerprint, context_.job_seed, context_.epoch, context_.path, steps_, kept.numbers()};
}

std::optional<DistributedCursor::Values> DistributedCursor::next() { return read(input_->partial_steps); }

std::optional<DistributedCursor::Values> DistributedCursor::next_as_optional() {
  return read(!input_->cardinality.is_infinite());
}

std::optional<InputStep> DistributedCursor::read_step() {
  const auto start = counters_ ? Clock::now() : Clock::time_point();
  if (counters_) {
    if (input_->buffer_size > 0) counters_->buffer(source_->ready(), static_cast<std::size_t>(input_->buffer_size));
    std::int64_t not_yet = 0;
    counters_->first_asked_ns.compare_exchange_strong(not_yet,
                                                      std::chrono::nanoseconds(start.time_since_epoch()).count());
  }
  std::optional<InputStep> step;
  try {
    step = source_->next();
  } catch (const StepFailed& failed) {
    steps_ = failed.position;
    std::rethrow_exception(failed.error);
  }
  if (counters_) {
    counters_->asked_ns.fetch_add(nanoseconds_since(start), std::memory_order_relaxed);
    if (step && step->local_values() > 0) {
      counters_->elements.fetch_add(1, std::memory_order_relaxed);
      counters_->rows.fetch_add(rows_of_replicas(*step), std::memory_order_relaxed);
    }
  }
  return step;
}

/// Whether there is a step, as all workers agree.
bool DistributedCursor::is_complete(const std::optional<InputStep>& step, bool partial_steps) {
  const ClusterShape& cluster = input_->cluster;
  if (step && step->total) {
    const auto all = static_cast<int>(*step->total);
    return decide_step(partial_steps, all, cluster.replicas(), *step->total) == StepOutcome::Complete;
  }
  const int local = step ? step->local_values() : 0;
  std::int64_t total = local;
  if (partial_steps && input_->agreement) {
    const bool told = step && step->like_others.size() > 0;
    const bool helpless = local == 0 && cluster.workers > 1 && !told && !knows_empty_batches();
    total = input_->agreement->total(local + (helpless ? kHelpless : 0));
    // Where nobody has data it does not matter.
    stuck_ = total >= kHelpless && total % kHelpless > 0;
    total %= kHelpless;
  }
  return decide_step(partial_steps, local, cluster.replicas_per_worker, total) == StepOutcome::Complete;
}

std::optional<DistributedCursor::Values> DistributedCursor::read(bool partial_steps) {
  require_outside_replicas("get_next");
  if (stuck_) throw_unknown_batches();
  if (ended_) return std::nullopt;
  std::optional<InputStep> step = read_step();
  const bool complete = is_complete(step, partial_steps);
  if (stuck_) throw_unknown_batches();
  if (!complete) {
    ended_ = true;
    return std::nullopt;
  }
  ++steps_;
  Values values(static_cast<std::size_t>(input_->cluster.replicas_per_worker));
  for (std::size_t k = 0; step && k < values.size(); ++k) {
    if (step->elements[k]) values[k] = std::move(*step->elements[k]);
  }
  if (seen_.size() == 0 && !tells_all(input_->element_spec)) {
    const auto with_data = std::ranges::find_if(values, [](const Element& value) { return value.size() > 0; });
    if (with_data != values.end()) seen_ = without_rows(*with_data);
    if (with_data == values.end() && step) seen_ = std::move(step->like_others);
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
  return values;
}

bool DistributedCursor::knows_empty_batches() {
  if (tells_all(input_->element_spec)) return true;
  if (seen_.size() == 0) seen_ = first_without_rows();
  return seen_.size() > 0;
}

void DistributedCursor::throw_unknown_batches() const {
  // Who reads all rows tells what the workers tell that had some of them.
  if (unseen_because_ && !input_->agreement) std::rethrow_exception(unseen_because_);
  throw FailedPrecondition(
      errors::kSignature,
      {.what = "a worker has no data, and what its empty batches should look like is not known",
       .where = str("step ", steps_, ", worker ", input_->cluster.worker, " of ", input_->cluster.workers),
       .seen = str("elements of ", to_string(input_->element_spec)),
       .help = "give `spec` to the map, flat_map or generator that makes the elements, or every worker some data"});
}

namespace {

/// Who only looks must not write the file of a cache, nor read one that others have written.
StagePtr without_file_caches(const StagePtr& stage) {
  const auto* cache = dynamic_cast<const CacheStage*>(stage.get());
  if (cache != nullptr && !cache->path().empty()) return without_file_caches(stage->input());
  std::vector<StagePtr> inputs;
  for (const StagePtr& input : stage->inputs()) inputs.push_back(without_file_caches(input));
  return inputs == stage->inputs() ? stage : stage->with_inputs(std::move(inputs));
}

}  // namespace

/// A worker that has had no row of its own may still read the pipeline that all workers read, or the files of others,
/// if that can be read twice. Does not throw: the other workers wait for what this one finds.
Element DistributedCursor::first_without_rows() {
  std::vector<StagePtr> known = input_->pipelines;
  if (input_->everything) known.push_back(input_->everything);
  for (const StagePtr& pipeline : known) {
    if (find_position_obstacle(*pipeline)) continue;
    try {
      const IteratorPtr elements = without_file_caches(pipeline)->iterate(context_);
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

void throw_no_more_data() {
  throw OutOfRange(errors::kNoMoreData, {.what = "the distributed dataset has no more steps",
                                         .where = "get_next",
                                         .help = "loop over the dataset, or use get_next_as_optional"});
}

void require_outside_replicas(const char* operation) {
  if (!in_replica_context() || !has_strategy()) return;
  throw InvalidArgument(errors::kWrongContext,
                        {.what = str(operation, " was called inside a replica"),
                         .help = "take the step outside of run and give it to run as an argument"});
}

}  // namespace lockstep::data
