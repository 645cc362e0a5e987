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

/// One pass over a pipeline that counts and can save its position: DatasetIterator without its type. Starts nothing
/// before the first read.
class LOCKSTEP_EXPORT PipelineIterator {
 public:
  /// The pass given by `options`, by default the next one.
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

  /// The place after the last element taken or failed. FailedPrecondition names a stage without exact positions.
  IteratorState state() const;
  /// Continues exactly there. InvalidArgument, without any change, if the state belongs to another pipeline. After any
  /// other error the iterator has no position: every call throws that error again until a state is loaded.
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
