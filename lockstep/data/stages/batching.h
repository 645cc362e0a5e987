#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/iterators.h"

namespace lockstep::data {

/// "(256, drop_remainder)"
std::string options_text(const BatchShape& shape);

/// Completes the description of a stage that batches its input's elements. InvalidArgument for an invalid size; `where`
/// is the call that was given it.
StagePtr make_batching_stage(StagePtr input, const BatchShape& shape, const char* where, StageDescription description);

/// Shared by all ways to make batches: batch k consists of the places k * size and up of the input, including failed
/// ones.
template <class Input, class Base = ElementIterator>
class BatchingIterator : public Base {
 public:
  BatchingIterator(std::unique_ptr<Input> input, const BatchShape& shape)
      : input_(std::move(input)), size_(shape.size), drop_remainder_(shape.drop_remainder) {}

  std::int64_t skip(std::int64_t count) override {
    return batched(input_->skip(skipped_input(count, size_)), size_, drop_remainder_).value();
  }
  void locate(std::int64_t consumed, Position& position) const override {
    input_->locate(skipped_input(consumed, size_), position);
  }
  void restore(Position& position) override { input_->restore(position); }

 protected:
  /// Calls `add(row)` for each row of the next batch; false if there is none. A batch with a row that fails, or that
  /// `add` rejects, fails as a whole: the rest of it is skipped. A short last batch is dropped whatever it contains:
  /// neither its rows nor their errors have a place.
  template <class Add>
  bool read_batch(Add&& add) {
    std::int64_t rows = 0;
    try {
      for (; rows < size_; add(row_)) {
        ++rows;  // counts even if it fails
        if (input_->next(row_)) continue;
        --rows;
        break;
      }
    } catch (...) {
      rows += input_->skip(size_ - rows);
      if (is_batch(rows) || concerns_whole_stream(std::current_exception())) throw;
      return false;
    }
    return is_batch(rows);
  }
  bool is_batch(std::int64_t rows) const { return rows == size_ || (rows > 0 && !drop_remainder_); }

  std::unique_ptr<Input> input_;
  const std::int64_t size_;
  const bool drop_remainder_;

 private:
  Element row_;
};

}  // namespace lockstep::data
