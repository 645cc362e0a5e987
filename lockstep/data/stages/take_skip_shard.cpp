#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/stages/order.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {
namespace {

template <class Stream>
class TakeOf final : public OrderOf<TakeOf<Stream>, Stream> {
 public:
  using typename OrderOf<TakeOf, Stream>::Item;
  TakeOf(std::unique_ptr<Stream> input, std::int64_t count) : input_(std::move(input)), count_(count), left_(count) {}

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t got = input_->skip(std::min(count, left_));
    left_ -= got;
    return got;
  }
  void locate(std::int64_t consumed, Position& position) const override {
    const std::int64_t taken = std::min(consumed, count_);
    position.push(taken);
    input_->locate(taken, position);
  }
  void restore(Position& position) override {
    left_ = count_ - position.pop();
    input_->restore(position);
  }

  std::size_t read(std::span<Item> items) {
    items = items.first(static_cast<std::size_t>(std::min<std::int64_t>(left_, std::ssize(items))));
    left_ -= std::ssize(items);  // also if it fails
    const std::size_t got = this->read_from(*input_, items);
    if (got < items.size()) left_ = 0;
    return got;
  }

 private:
  std::unique_ptr<Stream> input_;
  std::int64_t count_;
  std::int64_t left_;
};

template <class Stream>
class SkipOf final : public OrderOf<SkipOf<Stream>, Stream> {
 public:
  using typename OrderOf<SkipOf, Stream>::Item;
  SkipOf(std::unique_ptr<Stream> input, std::int64_t count)
      : input_(std::move(input)), count_(std::min(count, kEndless)), first_(count_) {}

  std::int64_t skip(std::int64_t count) override {
    start();
    return input_->skip(count);
  }
  void locate(std::int64_t consumed, Position& position) const override { input_->locate(count_ + consumed, position); }
  void restore(Position& position) override {
    first_ = 0;
    input_->restore(position);
  }

  std::size_t read(std::span<Item> items) {
    start();
    return this->read_from(*input_, items);
  }

 private:
  void start() {
    if (first_ > 0) input_->skip(std::exchange(first_, 0));
  }

  std::unique_ptr<Stream> input_;
  std::int64_t count_;
  std::int64_t first_;  // still to be left out
};

template <class Stream>
class ShardOf final : public OrderOf<ShardOf<Stream>, Stream> {
 public:
  using typename OrderOf<ShardOf, Stream>::Item;
  ShardOf(std::unique_ptr<Stream> input, std::int64_t shards, std::int64_t index)
      : input_(std::move(input)), shards_(shards), index_(index), gap_(index) {}

  std::int64_t skip(std::int64_t count) override {
    if (count <= 0) return 0;
    const std::int64_t got = input_->skip(gap_ + 1 + skipped_input(count - 1, shards_));
    const std::int64_t mine = got < gap_ + 1 ? 0 : (got - gap_ - 1) / shards_ + 1;
    gap_ = shards_ - 1;
    return mine;
  }
  // The place right before the next of ours.
  void locate(std::int64_t consumed, Position& position) const override {
    input_->locate(skipped_input(consumed, shards_) + index_, position);
  }
  void restore(Position& position) override {
    gap_ = 0;
    input_->restore(position);
  }

  std::size_t read(std::span<Item> items) {
    std::size_t written = 0;
    while (written < items.size() && pass_others() && this->read_from(*input_, items.subspan(written, 1)) == 1)
      ++written;
    return written;
  }

 private:
  /// Goes to the next place of ours; false at the end.
  bool pass_others() {
    const std::int64_t gap = std::exchange(gap_, shards_ - 1);
    return gap == 0 || input_->skip(gap) == gap;
  }

  std::unique_ptr<Stream> input_;
  std::int64_t shards_;
  std::int64_t index_;
  std::int64_t gap_;  // places of others before the next of ours
};

/// The rows of a batch where all but the last are batches of so many; 0: not known.
std::int64_t rows_of_full_batch(const Stage& stage) {
  using Elements = StageTraits::Elements;
  for (const Stage* each = &stage;; each = each->input().get()) {
    const StageTraits traits = each->traits();
    if (traits.makes_batches()) return traits.batch_size;
    if (traits.elements != Elements::Same && traits.elements != Elements::Stretch &&
        traits.elements != Elements::Rewritten)
      return 0;
  }
}

/// The rows of the first `count` batches of a stage.
Cardinality rows_of_first(const Stage& stage, std::int64_t count) {
  const Cardinality all = stage.total_rows();
  const std::int64_t full = rows_of_full_batch(stage);
  if (all.is_unknown() || full == 0) return Cardinality::unknown();
  const Cardinality wanted = multiplied(count, full);
  return all.is_infinite() || (wanted.is_known() && wanted.value() < all.value()) ? wanted : all;
}

[[noreturn]] void throw_unfilled_hint() {
  throw FailedPrecondition(
      errors::kSharding, {.what = "shard(kShardHint, kShardHint) requires AutoShardPolicy::Hint",
                          .where = "shard",
                          .help = "distribute the dataset with_options({.auto_shard_policy = AutoShardPolicy::Hint})"});
}

/// The rows of the elements of one shard.
Cardinality rows_of_shard(const Stage& below, std::int64_t shards, std::int64_t index) {
  const Cardinality batches = below.cardinality_if(Trust::Promised);
  const Cardinality all = below.total_rows();
  const std::int64_t full = rows_of_full_batch(below);
  if (full == 0 || !batches.is_known() || !all.is_known()) return Cardinality::unknown();
  const bool has_last = batches.value() > 0 && (batches.value() - 1) % shards == index;
  const std::int64_t lacking = has_last ? batches.value() * full - all.value() : 0;
  return sharded(batches, shards, index).value() * full - lacking;
}

}  // namespace

IteratorPtr take_shard(IteratorPtr elements, std::int64_t shards, std::int64_t index) {
  return std::make_unique<ShardOf<ElementIterator>>(std::move(elements), shards, index);
}

void check_count(std::string_view kind, std::int64_t count) {
  if (count >= -1) return;
  throw InvalidArgument(errors::kBadOption,
                        {.what = str("the count of ", kind, " must be >= -1, got ", count),
                         .where = std::string(kind),
                         .help = str("give -1 to ", kind, kind == "repeat" ? " for ever" : " all")});
}

StagePtr make_take(StagePtr input, std::int64_t count) {
  check_count("take", count);
  return make_order(
      std::move(input),
      {.kind = "take",
       .text = str("take(", count, ")"),
       .traits = StageTraits::passing_over(StageTraits::Elements::Stretch),
       .cardinality = [count](const Stage& below) { return taken(below.cardinality(), count); },
       .total_rows =
           [count](const Stage& below) { return count < 0 ? below.total_rows() : rows_of_first(below, count); }},
      [count]<class Stream>(const Stage& below, const IterationContext& context) {
        return std::make_unique<TakeOf<Stream>>(start_input<Stream>(below, context), count < 0 ? kEndless : count);
      });
}

StagePtr make_skip(StagePtr input, std::int64_t count) {
  check_count("skip", count);
  return make_order(
      std::move(input),
      {.kind = "skip",
       .text = str("skip(", count, ")"),
       .traits = StageTraits::passing_over(StageTraits::Elements::Stretch),
       .cardinality = [count](const Stage& below) { return skipped(below.cardinality(), count); },
       .total_rows =
           [count](const Stage& below) {
             if (count < 0) return Cardinality(0);
             const Cardinality all = below.total_rows();
             const Cardinality rows = rows_of_first(below, count);
             if (rows.is_unknown() || !all.is_known()) return rows.is_unknown() ? rows : all;
             return Cardinality(all.value() - rows.value());
           }},
      [count]<class Stream>(const Stage& below, const IterationContext& context) -> std::unique_ptr<Stream> {
        auto all = start_input<Stream>(below, context);
        if (count < 0) return std::make_unique<TakeOf<Stream>>(std::move(all), 0);
        return std::make_unique<SkipOf<Stream>>(std::move(all), count);
      });
}

StagePtr make_shard(StagePtr input, std::int64_t shards, std::int64_t index) {
  const bool is_hint = shards == kShardHint;
  if (!is_hint && (shards < 1 || index < 0 || index >= shards))
    throw InvalidArgument(
        errors::kBadOption,
        {.what = str("the index of a shard must be from 0 to the number of shards - 1, got ", index, " of ", shards),
         .where = "shard",
         .help = "call shard(shards, index), such as shard(4, 0) for the first of four"});
  StageTraits traits = StageTraits::passing_over(StageTraits::Elements::Picked);
  traits.is_shard_hint = is_hint;
  return make_order(
      std::move(input),
      {.kind = "shard",
       .text = is_hint ? "shard(by AutoShardPolicy::Hint)" : str("shard(", shards, ", ", index, ")"),
       .traits = traits,
       .cardinality =
           [=](const Stage& below) {
             if (!is_hint) return sharded(below.cardinality(), shards, index);
             return below.cardinality().is_infinite() ? Cardinality::infinite() : Cardinality::unknown();
           },
       .total_rows =
           [=](const Stage& below) { return is_hint ? Cardinality::unknown() : rows_of_shard(below, shards, index); }},
      [=]<class Stream>(const Stage& below, const IterationContext& context) {
        if (is_hint) throw_unfilled_hint();
        return std::make_unique<ShardOf<Stream>>(start_input<Stream>(below, context), shards, index);
      });
}

}  // namespace lockstep::data
