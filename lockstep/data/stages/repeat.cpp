#include <algorithm>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/stages/order.h"

namespace lockstep::data {
namespace {

/// Whether pass `pass` is one of `count`.
bool is_wanted(std::int64_t pass, std::int64_t count) { return count < 0 || pass < count; }

class RepeatIndices final : public IndexIterator {
 public:
  RepeatIndices(StagePtr input, IterationContext context, std::int64_t count)
      : input_(std::move(input)), context_(std::move(context)), count_(count), size_(input_->cardinality()) {}

  std::size_t next(std::span<std::int64_t> indices) override {
    std::size_t written = 0;
    while (written < indices.size() && is_wanted(pass_, count_)) {
      if (!current_) current_ = input_->make_index_iterator(context_.pass(static_cast<std::uint64_t>(pass_)));
      const auto rest = indices.subspan(written);
      const std::size_t got = current_->next(rest);
      written += got;
      in_pass_ += static_cast<std::int64_t>(got);
      if (got < rest.size() && !start_next_pass()) break;
    }
    return written;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count && is_wanted(pass_, count_)) {
      if (size_.is_known() && size_.value() > 0 && in_pass_ == 0 && !current_) {
        std::int64_t whole = (count - skipped) / size_.value();  // whole passes need no iterator at all
        if (count_ >= 0) whole = std::min(whole, count_ - pass_);
        pass_ += whole;
        skipped += whole * size_.value();
        if (skipped == count || !is_wanted(pass_, count_)) break;
      }
      if (!current_) current_ = input_->make_index_iterator(context_.pass(static_cast<std::uint64_t>(pass_)));
      const std::int64_t got = current_->skip(count - skipped);
      skipped += got;
      in_pass_ += got;
      if (skipped < count && !start_next_pass()) break;
    }
    return skipped;
  }

 private:
  /// False if the input is empty, which repeating does not change.
  bool start_next_pass() {
    const bool empty = in_pass_ == 0;
    current_ = nullptr;
    in_pass_ = 0;
    pass_ = empty ? count_ : pass_ + 1;
    if (empty && count_ < 0) count_ = pass_ = 0;
    return !empty;
  }

  StagePtr input_;
  IterationContext context_;
  std::int64_t count_;
  Cardinality size_;
  std::int64_t pass_ = 0;
  std::int64_t in_pass_ = 0;
  std::unique_ptr<IndexIterator> current_;
};

class RepeatIterator final : public ElementIterator {
 public:
  RepeatIterator(StagePtr input, IterationContext context, std::int64_t count)
      : input_(std::move(input)), context_(std::move(context)), count_(count), size_(input_->cardinality()) {}

  bool next(Element& element) override {
    while (is_wanted(pass_, count_)) {
      start_if_needed();
      if (current_->next(element)) {
        ++in_pass_;
        return true;
      }
      end_pass();
    }
    return false;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count && is_wanted(pass_, count_)) {
      if (size_.is_known() && size_.value() > 0 && !current_) {
        while (count - skipped >= size_.value() && is_wanted(pass_, count_)) {
          in_pass_ = size_.value();
          skipped += size_.value();
          end_pass();
        }
        if (skipped == count || !is_wanted(pass_, count_)) break;
      }
      start_if_needed();
      const std::int64_t got = current_->skip(count - skipped);
      skipped += got;
      in_pass_ += got;
      if (skipped < count) end_pass();
    }
    return skipped;
  }

  // A position is the pass and the place in it, so that going back there replays one pass and not all before it. The
  // ends of passes are written by the thread that reads ahead and read by the one that saves.
  void locate(std::int64_t consumed, Position& position) const override {
    const std::lock_guard lock(ends_mutex_);
    const auto end = std::ranges::lower_bound(ends_, consumed);
    const auto pass = end - ends_.begin();
    position.push(pass);
    position.push(consumed - (pass > 0 ? ends_[static_cast<std::size_t>(pass - 1)] : 0));
    position.push(pass > 0 ? ends_[static_cast<std::size_t>(pass - 1)] : 0);
  }

  void restore(Position& position) override {
    const std::int64_t pass = position.pop();
    const std::int64_t in_pass = position.pop();
    const std::int64_t before = position.pop();
    {
      // Where earlier passes ended is not known any more, and will not be asked for.
      const std::lock_guard lock(ends_mutex_);
      ends_.assign(static_cast<std::size_t>(std::max<std::int64_t>(pass, 0)), before);
    }
    pass_ = pass;
    in_pass_ = 0;
    if (in_pass > 0 && is_wanted(pass_, count_)) {
      start_if_needed();
      in_pass_ = current_->skip(in_pass);
    }
  }

 private:
  void start_if_needed() {
    if (!current_) current_ = input_->iterate(context_.pass(static_cast<std::uint64_t>(pass_)));
  }

  void end_pass() {
    current_ = nullptr;
    if (in_pass_ == 0) {  // an empty input stays empty however often it is repeated
      count_ = pass_ = 0;
      return;
    }
    const std::lock_guard lock(ends_mutex_);
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + in_pass_);
    ++pass_;
    in_pass_ = 0;
  }

  StagePtr input_;
  IterationContext context_;
  std::int64_t count_;
  Cardinality size_;
  std::int64_t pass_ = 0;
  std::int64_t in_pass_ = 0;
  IteratorPtr current_;
  mutable std::mutex ends_mutex_;
  std::vector<std::int64_t> ends_;  // elements up to the end of each pass that is over
};

}  // namespace

RepeatStage::RepeatStage(StagePtr input, std::int64_t count) : OrderStage({std::move(input)}), count_(count) {
  if (count_ < -1)
    throw InvalidArgument(errors::kBadOption, {.what = str("repeat takes a number of passes or -1, not ", count_)});
}

std::string RepeatStage::describe() const { return count_ < 0 ? "repeat" : str("repeat(", count_, ")"); }

StagePtr RepeatStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<RepeatStage>(std::move(inputs.front()), count_);
}

std::unique_ptr<IndexIterator> RepeatStage::make_index_iterator(const IterationContext& context) const {
  return std::make_unique<RepeatIndices>(input(), context, count_);
}

IteratorPtr RepeatStage::make_iterator(const IterationContext& context) const {
  if (auto rows = row_source()) return make_row_iterator(std::move(rows), make_index_iterator(context));
  return std::make_unique<RepeatIterator>(input(), context, count_);
}

}  // namespace lockstep::data
