#include <algorithm>
#include <deque>
#include <mutex>

#include "lockstep/data/stages/order.h"

namespace lockstep::data {
namespace {

template <class Stream>
class RepeatOf final : public OrderOf<RepeatOf<Stream>, Stream> {
 public:
  using typename OrderOf<RepeatOf, Stream>::Item;
  RepeatOf(StagePtr input, IterationContext context, std::int64_t count)
      : input_(std::move(input)),
        context_(std::move(context)),
        count_(count),
        size_(input_->cardinality_if(Reliability::Certain)) {}

  std::size_t read(std::span<Item> items) {
    std::size_t written = 0;
    while (written < items.size() && is_wanted()) {
      start_if_needed();
      const std::span<Item> rest = items.subspan(written);
      in_pass_ += std::ssize(rest);  // counts even if it fails
      const std::size_t got = this->read_from(*current_, rest);
      in_pass_ -= static_cast<std::int64_t>(rest.size() - got);
      written += got;
      if (got < rest.size() && !end_pass()) break;
    }
    return written;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count && is_wanted()) {
      if (const std::int64_t whole = whole_passes(count - skipped); whole > 0) {
        pass_ += whole;
        before_ += whole * size_.value();
        skipped += whole * size_.value();
        mark();
        continue;
      }
      start_if_needed();
      const std::int64_t got = current_->skip(count - skipped);
      skipped += got;
      in_pass_ += got;
      if (skipped < count && !end_pass()) break;
    }
    return skipped;
  }

  // A position is a pass and the place in it.
  void locate(std::int64_t consumed, Position& position) const override {
    PassStart start = first_;
    {
      const std::lock_guard lock(mutex_);
      const auto behind = std::ranges::upper_bound(starts_, consumed, {}, &PassStart::before);
      if (behind != starts_.begin()) start = *std::prev(behind);
    }
    position.push(start.pass);
    position.push(start.before);
    position.push(consumed - start.before);
    position.push(start.stream ? 1 : 0);
    if (start.stream) start.stream->locate(consumed - start.before, position);
  }

  void restore(Position& position) override {
    pass_ = position.pop();
    before_ = position.pop();
    first_ = {pass_, before_, nullptr};
    const std::int64_t in_pass = position.pop();
    if (position.pop() == 0) {
      skip(in_pass);
      return;
    }
    start_if_needed();
    current_->restore(position);
    in_pass_ = in_pass;
  }

 private:
  bool is_wanted() const { return count_ < 0 || pass_ < count_; }

  void start_if_needed() {
    if (current_) return;
    current_ = start_input<Stream>(*input_, context_.pass(static_cast<std::uint64_t>(pass_)));
    mark();
  }

  /// False if the input is empty: repeating it yields nothing.
  bool end_pass() {
    if constexpr (std::is_same_v<Stream, ElementIterator>) let_go();  // frees files, threads and caches
    current_ = nullptr;
    if (in_pass_ == 0) {
      count_ = pass_ = 0;
      return false;
    }
    ++pass_;
    before_ += std::exchange(in_pass_, 0);
    return true;
  }

  struct PassStart {
    std::int64_t pass = 0;
    std::int64_t before = 0;                    // places of all passes before it
    std::shared_ptr<const Stream> stream = {};  // for the last few passes, to locate places in them
  };
  // Enough for all reading ahead. An older place is found from the first start: slower, but just as exact.
  static constexpr std::size_t kStarts = 256;
  static constexpr std::size_t kStreams = 2;

  /// How many of the next `count` places are whole passes of a known size: those need no iterator.
  std::int64_t whole_passes(std::int64_t count) const {
    if (current_ || !size_.is_known() || size_.value() == 0) return 0;
    const std::int64_t whole = count / size_.value();
    return count_ < 0 ? whole : std::min(whole, count_ - pass_);
  }

  void mark() {
    const std::lock_guard lock(mutex_);
    if (!starts_.empty() && starts_.back().pass == pass_) starts_.pop_back();  // begun while skipping whole passes
    starts_.push_back({pass_, before_, current_});
    if (starts_.size() > kStarts) starts_.pop_front();
    if (starts_.size() > kStreams) starts_[starts_.size() - kStreams - 1].stream = nullptr;
  }

  void let_go() {
    const std::lock_guard lock(mutex_);
    if (!starts_.empty()) starts_.back().stream = nullptr;
  }

  StagePtr input_;
  IterationContext context_;
  std::int64_t count_;
  Cardinality size_;
  std::shared_ptr<Stream> current_;  // null between passes
  std::int64_t in_pass_ = 0;         // places passed in the current pass
  std::int64_t pass_ = 0;
  std::int64_t before_ = 0;
  PassStart first_;
  mutable std::mutex mutex_;  // the reading thread starts passes; the thread that saves a position looks them up
  std::deque<PassStart> starts_;
};

}  // namespace

StagePtr make_repeat(StagePtr input, std::int64_t count) {
  check_count("repeat", count);
  return make_order(std::move(input),
                    {.kind = "repeat",
                     .text = count < 0 ? "repeat" : str("repeat(", count, ")"),
                     .traits = StageTraits::passing_over(StageTraits::Elements::Picked),
                     .cardinality = [count](const Stage& below) { return repeated(below.cardinality(), count); },
                     // Repeating an empty input endlessly yields nothing.
                     .reliability =
                         [](const Stage& below) {
                           return below.cardinality().is_unknown() ? Reliability::None : below.reliability();
                         },
                     .total_rows = [count](const Stage& below) { return repeated(below.total_rows(), count); }},
                    [count]<class Stream>(const Stage& below, const IterationContext& context) {
                      return std::make_unique<RepeatOf<Stream>>(below.shared_from_this(), context, count);
                    });
}

}  // namespace lockstep::data
