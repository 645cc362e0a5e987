#include "lockstep/data/stage.h"

#include <array>

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

}  // namespace

RowSource::~RowSource() = default;
IndexIterator::~IndexIterator() = default;
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

PipelineIterator::PipelineIterator(StagePtr stage, IterationContext context)
    : stage_(std::move(stage)), context_(std::move(context)), iterator_(stage_->iterate(context_)) {}

bool PipelineIterator::next(Element& element) {
  // An element whose computation failed is passed over by the next call, and counted then: a place saved in between
  // lies before it.
  if (failed_) ++consumed_;
  failed_ = true;
  const bool more = iterator_->next(element);
  failed_ = false;
  if (more) ++consumed_;
  return more;
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
  PipelineIterator iterator(std::move(stage), {state.job_seed, state.epoch, state.path, std::move(meter), nullptr});
  Position position = Position::of(state.position);
  iterator.iterator_->restore(position);
  iterator.consumed_ = state.consumed;
  return iterator;
}

}  // namespace lockstep::data
