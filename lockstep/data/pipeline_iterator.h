#pragma once

#include <cstdint>
#include <exception>
#include <memory>

#include "lockstep/base/export.h"
#include "lockstep/data/element.h"
#include "lockstep/data/iterator_state.h"

namespace lockstep::data {

class ElementIterator;
struct IterationContext;

/// One pass over a pipeline that counts and knows how to save its place: what a DatasetIterator is without its type.
/// Nothing is started before it is first asked.
class LOCKSTEP_EXPORT PipelineIterator {
 public:
  /// The pass that `options` name, else the next one.
  explicit PipelineIterator(StagePtr stage, const PassOptions& options = {});
  PipelineIterator(StagePtr stage, IterationContext context);
  PipelineIterator(PipelineIterator&&) noexcept;
  PipelineIterator& operator=(PipelineIterator&&) noexcept;
  ~PipelineIterator();

  /// Writes the next element to `element`; false at the end.
  bool next(Element& element);
  /// Passes over up to `count` elements; returns how many.
  std::int64_t skip(std::int64_t count);
  /// Places passed: elements taken or skipped, and those that failed.
  std::int64_t consumed() const { return consumed_; }

  /// The place behind the last element taken, or behind the one that `next` failed at. FailedPrecondition names the
  /// stage that cannot promise it.
  IteratorState state() const;
  /// Goes on exactly there. InvalidArgument, and nothing is changed, if the state is of another pipeline. After any other
  /// error the iterator has no place: every call throws that error again until a state is loaded.
  void load_state(const IteratorState& state);

 private:
  struct Pass;  // its context and iterator
  ElementIterator& started() const;

  StagePtr stage_;
  std::unique_ptr<Pass> pass_;
  bool took_next_pass_ = false;
  std::exception_ptr unplaced_;  // why the last load_state failed
  std::int64_t consumed_ = 0;
};

}  // namespace lockstep::data
