#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/place.h"
#include "lockstep/data/stage.h"

namespace lockstep::data {

/// What all stages that make batches of their input's elements share.
class BatchingStage : public Stage {
 public:
  BatchingStage(StagePtr input, const BatchShape& shape, const char* where);

  Cardinality cardinality() const override;
  Cardinality total_rows() const override;

 protected:
  StageTraits batch_traits(StageTraits::Elements elements) const;
  /// "(256, drop_remainder)"
  std::string options_text() const;
  /// Of the first dimension of a batch.
  std::int64_t known_rows() const { return shape_.drop_remainder ? shape_.size : PartialShape::kUnknown; }

  BatchShape shape_;
};

/// What all ways to make batches share: batch k is made of the places k * size and up of the input, whatever stands
/// there.
template <class Input, class Base = ElementIterator>
class BatchingIterator : public Base {
 public:
  BatchingIterator(std::unique_ptr<Input> input, const BatchShape& shape)
      : input_(std::move(input)), size_(shape.size), drop_remainder_(shape.drop_remainder) {}

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t rows = input_->skip(skipped_input(count, size_));
    return rows / size_ + (!drop_remainder_ && rows % size_ != 0 ? 1 : 0);
  }
  void locate(std::int64_t consumed, Position& position) const override {
    input_->locate(skipped_input(consumed, size_), position);
  }
  void restore(Position& position) override { input_->restore(position); }

 protected:
  /// Calls `add(row)` for each row of the next batch; false if there is none. A batch with a row that fails, or that
  /// `add` refuses, fails as a whole: the rest of it is passed over. A short last batch that is left out is so whatever
  /// is in it: it has no place, neither for its rows nor for their errors.
  template <class Add>
  bool read_batch(Add&& add) {
    std::int64_t rows = 0;
    try {
      for (; rows < size_; add(row_)) {
        ++rows;  // also if it fails
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
