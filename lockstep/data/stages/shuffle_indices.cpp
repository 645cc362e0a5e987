#include "lockstep/data/stages/shuffle_indices.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "lockstep/data/shuffle_buffer.h"

namespace lockstep::data {
namespace {

/// The buffer's state after `given` numbers were returned.
struct ShuffleMark {
  std::int64_t given = 0;
  ShuffleBuffer<std::int64_t> buffer;
};

/// The latest marks. The reading thread makes them; the thread that saves a position looks them up.
class ShuffleMarks {
 public:
  void add(ShuffleMark mark) {
    auto added = std::make_shared<const ShuffleMark>(std::move(mark));
    const std::lock_guard lock(mutex_);
    marks_.push_back(std::move(added));
    if (marks_.size() > kKept) marks_.pop_front();
  }
  /// The last mark at or before this place; null if none is left.
  std::shared_ptr<const ShuffleMark> before(std::int64_t given) const {
    const std::lock_guard lock(mutex_);
    const auto behind = std::ranges::find_if(marks_, [&](const auto& mark) { return mark->given > given; });
    return behind == marks_.begin() ? nullptr : *std::prev(behind);
  }

 private:
  static constexpr std::size_t kKept = 16;  // stages above read less far ahead than this many marks span

  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<const ShuffleMark>> marks_;
};

class ShuffleIndices final : public IndexIterator {
 public:
  ShuffleIndices(IndexIteratorPtr input, std::uint64_t key, std::int64_t capacity)
      : input_(std::move(input)),
        buffer_(key, capacity),
        distance_(capacity <= kMostStoredNumbers ? std::max<std::int64_t>(capacity, kLeastDistance) : kEndless),
        next_mark_(distance_) {}

  std::size_t next(std::span<std::int64_t> indices) override {
    std::size_t written = 0;
    while (written < indices.size()) {
      const auto wanted = static_cast<std::size_t>(to_mark(std::ssize(indices) - static_cast<std::int64_t>(written)));
      std::size_t got = 0;
      while (got < wanted && buffer_.next(indices[written + got], input_)) ++got;
      written += got;
      pass(static_cast<std::int64_t>(got));
      if (got < wanted) break;
    }
    return written;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count) {
      const std::int64_t wanted = to_mark(count - skipped);
      const std::int64_t got = buffer_.skip(wanted, input_);
      skipped += got;
      pass(got);
      if (got < wanted) break;
    }
    return skipped;
  }

  // The place, and the mark: how many numbers it stores (which a shuffle of elements skips), its place, the buffer, and
  // the input's position.
  void locate(std::int64_t consumed, Position& position) const override {
    position.push(consumed);
    Position at_mark;
    if (const auto mark = marks_.before(consumed)) {
      at_mark.push(mark->given);
      mark->buffer.save(at_mark);
      input_.order().locate(mark->given + mark->buffer.size(), at_mark);
    }
    position.push(std::ssize(at_mark.numbers()));
    for (const std::int64_t number : at_mark.numbers()) position.push(number);
  }

  void restore(Position& position) override {
    const std::int64_t consumed = position.pop();
    if (position.pop() > 0) {
      given_ = position.pop();
      buffer_.restore(position);
      input_.order().restore(position);
      mark();
    }
    skip(consumed - given_);
  }

 private:
  /// The distance between two marks, larger for large buffers: then marks cost less than drawing.
  static constexpr std::int64_t kLeastDistance = 16'384;

  std::int64_t to_mark(std::int64_t wanted) const { return std::min(wanted, next_mark_ - given_); }
  // Marks are at the same places whatever the request size, so positions do not depend on it.
  void pass(std::int64_t count) {
    given_ += count;
    if (given_ == next_mark_) mark();
  }
  void mark() {
    marks_.add({given_, buffer_});
    next_mark_ = given_ + distance_;
  }

  IndexReader input_;
  ShuffleBuffer<std::int64_t> buffer_;
  const std::int64_t distance_;
  std::int64_t next_mark_;
  std::int64_t given_ = 0;
  ShuffleMarks marks_;
};

}  // namespace

IndexIteratorPtr shuffle_indices(IndexIteratorPtr input, std::uint64_t key, std::int64_t capacity) {
  return std::make_unique<ShuffleIndices>(std::move(input), key, capacity);
}

}  // namespace lockstep::data
