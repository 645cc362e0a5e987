#include "lockstep/data/pipeline_iterator.h"

#include "lockstep/data/errors.h"
#include "lockstep/data/pipeline.h"

namespace lockstep::data {

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
  ++consumed_;  // also if it fails
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
  save_all_lasting(*stage_, position);
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
  pass_->iterator = nullptr;  // lets go of what it has begun, such as filling a cache
  unplaced_ = nullptr;
  try {
    Position position = Position::of(state.position);
    restore_all_lasting(*stage_, position);
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
