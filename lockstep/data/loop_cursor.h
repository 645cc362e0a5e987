#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

namespace lockstep::data {

/// The iterator of a range-based `for` over a dataset: a pass whose `next` returns the next value, or nothing at the end.
template <class Value, class Pass>
class LoopCursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Value;
  using difference_type = std::ptrdiff_t;
  using pointer = const Value*;
  using reference = const Value&;
  /// The end of every loop.
  struct End {};

  explicit LoopCursor(Pass pass) : pass_(std::move(pass)), current_(pass_.next()) {}
  const Value& operator*() const { return *current_; }
  const Value* operator->() const { return &*current_; }
  LoopCursor& operator++() {
    current_.reset();  // frees the batch first, so that the next one can reuse its memory
    current_ = pass_.next();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const LoopCursor& cursor, End) { return !cursor.current_; }

 private:
  Pass pass_;
  std::optional<Value> current_;
};

}  // namespace lockstep::data
