#include "lockstep/data/stage.h"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/place.h"

namespace lockstep::data {
namespace {

/// Calls `visit` for a stage and all below it, each before its inputs. Not by recursion: programs build chains of many
/// thousand stages.
template <class Visit>
void for_each_stage(const Stage& root, Visit visit) {
  std::vector<const Stage*> waiting{&root};
  while (!waiting.empty()) {
    const Stage& stage = *waiting.back();
    waiting.pop_back();
    visit(stage);
    for (auto input = stage.inputs().rbegin(); input != stage.inputs().rend(); ++input) waiting.push_back(input->get());
  }
}

/// Prints trees, with the line of a stage as `line_of` gives it; stages without a line are left out.
class TreePrinter {
 public:
  explicit TreePrinter(std::function<std::string(const Stage&)> line_of) : line_of_(std::move(line_of)) {}

  std::string print(const Stage& stage) {
    print(shown(stage), "", "");
    return std::move(text_);
  }

 private:
  void print(const Stage& stage, const std::string& before, const std::string& indent) {
    text_ += str(before, line_of_(stage), '\n');
    const std::vector<const Stage*> inputs = shown_inputs(stage);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool last = i + 1 == inputs.size();
      print(*inputs[i], indent + (last ? "└─ " : "├─ "), indent + (last ? "   " : "│  "));
    }
  }

  /// The stage itself, or the first one below it that has a line.
  const Stage& shown(const Stage& stage) const {
    const Stage* at = &stage;
    while (line_of_(*at).empty()) at = at->input().get();
    return *at;
  }

  std::vector<const Stage*> shown_inputs(const Stage& stage) const {
    std::vector<const Stage*> inputs;
    const Stage* first = &stage;
    for (; first->kind() == "concatenate"; first = &shown(*first->input()))
      inputs.push_back(&shown(*first->inputs().back()));
    if (first != &stage) {
      inputs.push_back(first);
      std::ranges::reverse(inputs);
      return inputs;
    }
    for (const StagePtr& input : stage.inputs()) inputs.push_back(&shown(*input));
    return inputs;
  }

  std::function<std::string(const Stage&)> line_of_;
  std::string text_;
};

}  // namespace

RowSource::~RowSource() = default;

Stage::Stage(std::vector<StagePtr> inputs)
    : inputs_(std::move(inputs)),
      inputs_are_certain_(
          std::ranges::all_of(inputs_, [](const StagePtr& input) { return input->has_certain_cardinality(); })) {}

// A long chain is let go of one stage at a time: if each freed the next, that would need as much stack.
Stage::~Stage() {
  std::vector<StagePtr> dying = std::move(inputs_);
  while (!dying.empty()) {
    const StagePtr last = std::move(dying.back());
    dying.pop_back();
    if (last.use_count() == 1) dying.insert(dying.end(), last->inputs_.begin(), last->inputs_.end());
  }
}

std::int64_t IndexIterator::skip(std::int64_t count) {
  std::array<std::int64_t, 256> unwanted;
  std::int64_t skipped = 0;
  while (skipped < count) {
    const auto wanted = std::min<std::int64_t>(count - skipped, unwanted.size());
    const std::size_t got = next({unwanted.data(), static_cast<std::size_t>(wanted)});
    skipped += static_cast<std::int64_t>(got);
    if (static_cast<std::int64_t>(got) < wanted) break;
  }
  return skipped;
}

std::unique_ptr<IndexIterator> Stage::make_index_iterator(const IterationContext&) const { return nullptr; }

void Stage::save_lasting(Position&) const {}
void Stage::restore_lasting(Position&) const {}

const StagePtr& require_stage(const StagePtr& stage) {
  if (stage) return stage;
  throw FailedPrecondition(errors::kStructure, {.what = "an empty Dataset was used: one that was made without a source",
                                                .help = "make it with range, from_tensor_slices, tfrecord_dataset or "
                                                        "another source; range(0) has no elements"});
}

std::int64_t count_stages(const Stage& stage, std::string_view kind) {
  std::int64_t count = 0;
  for_each_stage(stage, [&](const Stage& each) { count += each.kind() == kind ? 1 : 0; });
  return count;
}

std::int64_t depth_of(const Stage& stage) {
  std::int64_t deepest = 0;
  std::vector<std::pair<const Stage*, std::int64_t>> waiting{{&stage, 1}};
  while (!waiting.empty()) {
    const auto [at, depth] = waiting.back();
    waiting.pop_back();
    deepest = std::max(deepest, depth);
    for (const StagePtr& input : at->inputs()) waiting.emplace_back(input.get(), depth + 1);
  }
  return deepest;
}

std::string print_tree(const Stage& stage) {
  return TreePrinter([](const Stage& each) { return each.describe(); }).print(stage);
}

std::string fingerprint(const Stage& stage) {
  return TreePrinter([](const Stage& each) { return each.identity(); }).print(stage);
}

void save_all_lasting(const Stage& stage, Position& position) {
  for_each_stage(stage, [&](const Stage& each) { each.save_lasting(position); });
}

void restore_all_lasting(const Stage& stage, Position& position) {
  for_each_stage(stage, [&](const Stage& each) { each.restore_lasting(position); });
}

std::optional<std::string> find_position_obstacle(const Stage& stage) {
  std::optional<std::string> found;
  for_each_stage(stage, [&](const Stage& each) {
    if (found) return;
    if (auto obstacle = each.position_obstacle()) found = str(each.describe(), ": ", *obstacle);
  });
  return found;
}

/// Passes are counted under one lock for all pipelines: starting one is rare, and stages are shared between them.
class PassCounter {
 public:
  /// The pass behind all that any stage below has seen.
  static std::uint64_t next(const Stage& stage) {
    std::uint64_t pass = 0;
    for_each_stage(stage, [&](const Stage& each) { pass = std::max(pass, each.passes_); });
    return pass;
  }
  static void raise_to(const Stage& stage, std::uint64_t pass) {
    for_each_stage(stage, [&](const Stage& each) { each.passes_ = std::max(each.passes_, pass); });
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
};

std::uint64_t begin_pass(const Stage& stage) {
  const std::lock_guard lock(PassCounter::mutex());
  const std::uint64_t pass = PassCounter::next(stage);
  PassCounter::raise_to(stage, pass + 1);
  return pass;
}

void go_on_after_pass(const Stage& stage, std::uint64_t epoch) {
  const std::lock_guard lock(PassCounter::mutex());
  PassCounter::raise_to(stage, epoch + 1);
}

PipelineIterator::PipelineIterator(StagePtr stage, IterationContext context)
    : stage_(std::move(stage)), context_(std::move(context)), iterator_(stage_->iterate(context_)) {}

bool PipelineIterator::next(Element& element) {
  ++consumed_;  // also if it fails
  try {
    if (iterator_->next(element)) return true;
  } catch (...) {
    if (concerns_whole_stream(std::current_exception())) --consumed_;
    throw;
  }
  --consumed_;
  return false;
}

std::int64_t PipelineIterator::skip(std::int64_t count) {
  if (count < 0)
    throw InvalidArgument(errors::kBadOption, {.what = str("cannot skip ", count, " elements"),
                                               .where = "skip of an iterator",
                                               .help = "an iterator only goes on; for what was read "
                                                       "before, start another one"});
  const std::int64_t skipped = iterator_->skip(count);
  consumed_ += skipped;
  return skipped;
}

IteratorState PipelineIterator::save() const {
  if (const auto obstacle = find_position_obstacle(*stage_)) {
    throw FailedPrecondition(errors::kPosition, {.what = "the position in this pipeline cannot be saved exactly",
                                                 .where = *obstacle,
                                                 .help = "use an ordered, repeatable stage in its place"});
  }
  Position position;
  save_all_lasting(*stage_, position);
  iterator_->locate(consumed_, position);
  return {fingerprint(*stage_), context_.job_seed, context_.epoch, context_.path, consumed_, position.numbers()};
}

PipelineIterator PipelineIterator::restore(StagePtr stage, const IteratorState& state,
                                           std::shared_ptr<StageMeter> meter) {
  const std::string pipeline = fingerprint(*stage);
  if (pipeline != state.pipeline) {
    throw InvalidArgument(errors::kPosition, {.what = "the saved position belongs to another pipeline",
                                              .seen = str("saved from\n", state.pipeline, "restored into\n", pipeline),
                                              .help = "build the same pipeline as in the program that saved"});
  }
  Position position = Position::of(state.position);
  restore_all_lasting(*stage, position);
  PipelineIterator iterator(std::move(stage), {.job_seed = state.job_seed,
                                               .epoch = state.epoch,
                                               .path = state.path,
                                               .meter = std::move(meter),
                                               .is_resumed = true});
  iterator.iterator_->restore(position);
  iterator.consumed_ = state.consumed;
  return iterator;
}

}  // namespace lockstep::data
