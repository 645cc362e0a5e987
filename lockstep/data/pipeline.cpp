#include "lockstep/data/pipeline.h"

#include <algorithm>
#include <mutex>

#include "lockstep/data/errors.h"
#include "lockstep/data/pipeline_iterator.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {
namespace {

/// Calls `visit` for a stage and all below it, each before its inputs.
template <class Visit>
void for_each_stage(const Stage& root, Visit visit) {
  find_stage(root, [&](const Stage& stage) {
    visit(stage);
    return false;
  });
}

/// One lock for the passes of all pipelines: starting one is rare, and stages are shared between them.
std::mutex& passes_mutex() {
  static std::mutex one;
  return one;
}

void raise_passes_to(const Stage& stage, std::uint64_t pass) {
  for_each_stage(stage, [&](const Stage& each) { each.passes() = std::max(each.passes(), pass); });
}

bool is_concatenation(const Stage& stage) { return stage.traits().elements == StageTraits::Elements::Concatenated; }

using LineOfStage = const std::string& (Stage::*)() const;

/// The stage, or the first one below it that has a line.
const Stage& shown(const Stage& stage, LineOfStage line) {
  const Stage* at = &stage;
  while ((at->*line)().empty()) at = at->input().get();
  return *at;
}

/// Concatenated datasets appear as siblings.
std::vector<const Stage*> shown_inputs(const Stage& stage, LineOfStage line) {
  std::vector<const Stage*> inputs;
  const Stage* first = &stage;
  for (; is_concatenation(*first); first = &shown(*first->input(), line))
    inputs.push_back(&shown(*first->inputs().back(), line));
  if (first != &stage) {
    inputs.push_back(first);
    std::ranges::reverse(inputs);
    return inputs;
  }
  for (const StagePtr& input : stage.inputs()) inputs.push_back(&shown(*input, line));
  return inputs;
}

/// A tree with a line for each stage; stages without a line are left out.
void print(std::string& text, const Stage& stage, LineOfStage line, const std::string& before = "",
           const std::string& indent = "") {
  text += str(before, (stage.*line)(), '\n');
  const std::vector<const Stage*> inputs = shown_inputs(stage, line);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool last = i + 1 == inputs.size();
    print(text, *inputs[i], line, indent + (last ? "└─ " : "├─ "), indent + (last ? "   " : "│  "));
  }
}

std::string tree_of(const Stage& stage, LineOfStage line) {
  std::string text;
  print(text, shown(stage, line), line);
  return text;
}

}  // namespace

// Without recursion: programs build chains of many thousand stages.
const Stage* find_stage(const Stage& root, FunctionRef<bool(const Stage&)> is_wanted) {
  std::vector<const Stage*> waiting{&root};
  while (!waiting.empty()) {
    const Stage& stage = *waiting.back();
    waiting.pop_back();
    if (is_wanted(stage)) return &stage;
    for (auto input = stage.inputs().rbegin(); input != stage.inputs().rend(); ++input) waiting.push_back(input->get());
  }
  return nullptr;
}

std::int64_t count_stages(const Stage& stage, std::string_view kind) {
  std::int64_t count = 0;
  for_each_stage(stage, [&](const Stage& each) { count += each.kind() == kind ? 1 : 0; });
  return count;
}

std::string print_tree(const Stage& stage) { return tree_of(stage, &Stage::describe); }

std::string fingerprint(const Stage& stage) { return tree_of(stage, &Stage::identity); }

void save_pass_states(const Stage& stage, Position& position) {
  for_each_stage(stage, [&](const Stage& each) {
    if (const auto& pass_state = each.description().pass_state) pass_state->save(position);
  });
}

void restore_pass_states(const Stage& stage, Position& position) {
  for_each_stage(stage, [&](const Stage& each) {
    if (const auto& pass_state = each.description().pass_state) pass_state->restore(position);
  });
}

std::optional<std::string> find_position_obstacle(const Stage& stage) {
  std::optional<std::string> obstacle;
  const Stage* found = find_stage(stage, [&](const Stage& each) {
    obstacle = each.position_obstacle();
    return obstacle.has_value();
  });
  return found ? std::optional(str(found->describe(), ": ", *obstacle)) : std::nullopt;
}

void throw_position_obstacle(const std::string& obstacle) {
  throw FailedPrecondition(errors::kPosition,
                           {.what = "the position in this dataset cannot be saved exactly",
                            .where = obstacle,
                            .help = "use an ordered, repeatable stage instead: MapOptions::ordered = true, "
                                    "GeneratorOptions::replayable = true"});
}

std::uint64_t begin_pass(const Stage& stage) {
  const std::lock_guard lock(passes_mutex());
  std::uint64_t pass = 0;
  for_each_stage(stage, [&](const Stage& each) { pass = std::max(pass, each.passes()); });
  raise_passes_to(stage, pass + 1);
  return pass;
}

void take_back_pass(const Stage& stage, std::uint64_t epoch) {
  const std::lock_guard lock(passes_mutex());
  for_each_stage(stage, [&](const Stage& each) { each.passes() -= each.passes() == epoch + 1 ? 1 : 0; });
}

void go_on_after_pass(const Stage& stage, std::uint64_t epoch) {
  const std::lock_guard lock(passes_mutex());
  raise_passes_to(stage, epoch + 1);
}

struct PipelineIterator::Pass {
  IterationContext context;
  IteratorPtr iterator = nullptr;  // until it is needed
};

PipelineIterator::PipelineIterator(StagePtr stage, const PassOptions& options)
    : stage_(std::move(stage)),
      pass_(new Pass{{.job_seed = options.job_seed ? *options.job_seed : default_job_seed(),
                      .epoch = options.epoch ? *options.epoch : begin_pass(*stage_),
                      .meter = options.meter}}),
      took_next_pass_(!options.epoch) {}

PipelineIterator::PipelineIterator(StagePtr stage, IterationContext context)
    : stage_(std::move(stage)), pass_(new Pass{std::move(context)}) {}

PipelineIterator::PipelineIterator(PipelineIterator&&) noexcept = default;
PipelineIterator& PipelineIterator::operator=(PipelineIterator&&) noexcept = default;
PipelineIterator::~PipelineIterator() = default;

ElementIterator& PipelineIterator::started() const {
  if (unplaced_) std::rethrow_exception(unplaced_);
  if (!pass_->iterator) pass_->iterator = stage_->iterate(pass_->context);
  return *pass_->iterator;
}

bool PipelineIterator::next(Element& element) {
  ElementIterator& iterator = started();
  ++consumed_;  // counts even if it fails
  try {
    if (iterator.next(element)) return true;
  } catch (...) {
    if (concerns_whole_stream(std::current_exception())) --consumed_;
    throw;
  }
  --consumed_;
  return false;
}

std::int64_t PipelineIterator::skip(std::int64_t count) {
  if (count < 0)
    refuse_option("skip of an iterator", str("the number of elements to skip must be >= 0, got ", count),
                  "an iterator only goes forward: to read earlier elements, make "
                  "another one with iterator()");
  const std::int64_t skipped = started().skip(count);
  consumed_ += skipped;
  return skipped;
}

IteratorState PipelineIterator::state() const {
  if (const auto obstacle = find_position_obstacle(*stage_)) throw_position_obstacle(*obstacle);
  Position position;
  const ElementIterator& iterator = started();
  save_pass_states(*stage_, position);
  iterator.locate(consumed_, position);
  return {fingerprint(*stage_), pass_->context.job_seed, pass_->context.epoch, pass_->context.path, consumed_,
          position.numbers()};
}

void PipelineIterator::load_state(const IteratorState& state) {
  const std::string pipeline = fingerprint(*stage_);
  if (pipeline != state.pipeline) {
    throw InvalidArgument(errors::kPosition, {.what = "the state belongs to another dataset",
                                              .where = "load_state",
                                              .seen = str("saved from\n", state.pipeline, "loaded into\n", pipeline),
                                              .help = "build the same dataset as in the program that called state()"});
  }
  if (consumed_ == 0 && std::exchange(took_next_pass_, false)) take_back_pass(*stage_, pass_->context.epoch);
  pass_->iterator = nullptr;  // aborts work it began, such as filling a cache
  unplaced_ = nullptr;
  try {
    Position position = Position::of(state.position);
    restore_pass_states(*stage_, position);
    pass_->context.job_seed = state.job_seed;
    pass_->context.epoch = state.epoch;
    pass_->context.path = state.path;
    pass_->context.is_resumed = true;
    started().restore(position);
  } catch (...) {
    unplaced_ = std::current_exception();
    throw;
  }
  consumed_ = state.consumed;
  go_on_after_pass(*stage_, state.epoch);
}

}  // namespace lockstep::data
