#pragma once

#include <utility>

#include "lockstep/data/iterator.h"

namespace lockstep::data {

/// An iterator that makes one element of each element of its input, so that places and skipping are its input's.
class OneToOneIterator : public ElementIterator {
 public:
  explicit OneToOneIterator(IteratorPtr input) : input_(std::move(input)) {}

  std::int64_t skip(std::int64_t count) override { return input_->skip(count); }
  void locate(std::int64_t consumed, Position& position) const override { input_->locate(consumed, position); }
  void restore(Position& position) override { input_->restore(position); }

 protected:
  IteratorPtr input_;
};

/// One that also has to know how many elements came before.
class CountingIterator : public OneToOneIterator {
 public:
  using OneToOneIterator::OneToOneIterator;

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = OneToOneIterator::skip(count);
    count_ += skipped;
    return skipped;
  }
  void locate(std::int64_t consumed, Position& position) const override {
    position.push(consumed);
    OneToOneIterator::locate(consumed, position);
  }
  void restore(Position& position) override {
    count_ = position.pop();
    OneToOneIterator::restore(position);
  }

 protected:
  std::int64_t count_ = 0;
};

}  // namespace lockstep::data
