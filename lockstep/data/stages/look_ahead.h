#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>

#include "lockstep/data/iterator.h"

namespace lockstep::data {

/// An iterator that can count the remaining elements before they are taken. Elements and errors read for that are kept
/// until they are taken.
class LookAhead : public ElementIterator {
 public:
  explicit LookAhead(IteratorPtr input) : input_(std::move(input)) {}

  /// Returns how many of the next `count` places there are. Those from `begin` to `end` can be taken afterwards, the
  /// others only skipped. Everything looked at earlier must have been passed.
  std::int64_t look(std::int64_t count, std::int64_t begin, std::int64_t end) {
    before_ = input_->skip(begin);
    if (before_ < begin) return before_;
    while (std::ssize(ahead_) < end - begin) {
      Place place;
      if (!place.read(*input_)) break;
      ahead_.push_back(std::move(place));
    }
    if (std::ssize(ahead_) < end - begin) return before_ + std::ssize(ahead_);
    behind_ = input_->skip(count - end);
    return end + behind_;
  }

  bool next(Element& element) override {
    if (ahead_.empty()) return input_->next(element);
    Place place = std::move(ahead_.front());
    ahead_.pop_front();
    place.give(element);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    std::int64_t left = count - pass(before_, count);
    for (; left > 0 && !ahead_.empty(); --left) {
      rethrow_if_fatal(ahead_.front().error);
      ahead_.pop_front();
    }
    left -= pass(behind_, left);
    return count - left + (left > 0 ? input_->skip(left) : 0);
  }
  void locate(std::int64_t consumed, Position& position) const override { input_->locate(consumed, position); }
  void restore(Position& position) override { input_->restore(position); }
  std::string origin(std::int64_t number, std::int64_t row) const override { return input_->origin(number, row); }

 private:
  static std::int64_t pass(std::int64_t& places, std::int64_t most) {
    const std::int64_t passed = std::min(places, most);
    places -= passed;
    return passed;
  }

  IteratorPtr input_;
  std::int64_t before_ = 0;  ///< places skipped before those in `ahead_`
  std::deque<Place> ahead_;
  std::int64_t behind_ = 0;  ///< places skipped after them
};

}  // namespace lockstep::data
