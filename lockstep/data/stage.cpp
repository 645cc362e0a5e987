#include "lockstep/data/stage.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

void print_below(const Stage& stage, const std::string& indent, std::string& text) {
  const auto& inputs = stage.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool last = i + 1 == inputs.size();
    text += str(indent, last ? "└─ " : "├─ ", inputs[i]->describe(), '\n');
    print_below(*inputs[i], indent + (last ? "   " : "│  "), text);
  }
}

void save_all_lasting(const Stage& stage, Position& position) {
  stage.save_lasting(position);
  for (const StagePtr& input : stage.inputs()) save_all_lasting(*input, position);
}

void restore_all_lasting(const Stage& stage, Position& position) {
  stage.restore_lasting(position);
  for (const StagePtr& input : stage.inputs()) restore_all_lasting(*input, position);
}

}  // namespace

RowSource::~RowSource() = default;
Stage::~Stage() = default;

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

std::string print_tree(const Stage& stage) {
  std::string text = stage.describe() + "\n";
  print_below(stage, "", text);
  return text;
}

std::optional<std::string> find_position_obstacle(const Stage& stage) {
  if (auto obstacle = stage.position_obstacle()) return str(stage.describe(), ": ", *obstacle);
  for (const StagePtr& input : stage.inputs())
    if (auto obstacle = find_position_obstacle(*input)) return obstacle;
  return std::nullopt;
}

/// Passes are counted under one lock for all pipelines: starting one is rare, and stages are shared between them.
class PassCounter {
 public:
  /// The pass behind all that any stage below has seen.
  static std::uint64_t next(const Stage& stage) {
    std::uint64_t pass = stage.passes_;
    for (const StagePtr& input : stage.inputs()) pass = std::max(pass, next(*input));
    return pass;
  }
  static void raise_to(const Stage& stage, std::uint64_t pass) {
    stage.passes_ = std::max(stage.passes_, pass);
    for (const StagePtr& input : stage.inputs()) raise_to(*input, pass);
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
  if (iterator_->next(element)) return true;
  --consumed_;
  return false;
}

std::int64_t PipelineIterator::skip(std::int64_t count) {
  if (count < 0) throw InvalidArgument(errors::kBadOption, {.what = str("cannot skip ", count, " elements")});
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
  return {print_tree(*stage_), context_.job_seed, context_.epoch, context_.path, consumed_, position.numbers()};
}

PipelineIterator PipelineIterator::restore(StagePtr stage, const IteratorState& state,
                                           std::shared_ptr<StageMeter> meter) {
  const std::string pipeline = print_tree(*stage);
  if (pipeline != state.pipeline) {
    throw InvalidArgument(errors::kPosition, {.what = "the saved position belongs to another pipeline",
                                              .seen = str("saved from\n", state.pipeline, "restored into\n", pipeline),
                                              .help = "build the same pipeline as in the program that saved"});
  }
  Position position = Position::of(state.position);
  restore_all_lasting(*stage, position);
  PipelineIterator iterator(std::move(stage), {state.job_seed, state.epoch, state.path, std::move(meter), nullptr});
  iterator.iterator_->restore(position);
  iterator.consumed_ = state.consumed;
  return iterator;
}

}  // namespace lockstep::data
