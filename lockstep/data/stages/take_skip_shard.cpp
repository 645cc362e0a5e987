#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/stage.h"
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

class TakeStage final : public OrderStageOf<TakeStage, CountedStage> {
 public:
  TakeStage(StagePtr input, std::int64_t count) : OrderStageOf(std::move(input), "take", count) {}

  StageTraits traits() const override { return StageTraits::passing_over(StageTraits::Elements::Stretch); }
  Cardinality cardinality() const override { return taken(input()->cardinality(), count()); }
  Cardinality total_rows() const override {
    if (count() < 0) return input()->total_rows();
    const Cardinality rows = rows_of_first(*input(), count());
    return rows.is_unknown() ? Stage::total_rows() : rows;
  }
  template <class Stream>
  std::unique_ptr<Stream> make_order(const IterationContext& context) const {
    return std::make_unique<TakeOf<Stream>>(start_input<Stream>(*input(), context), limit());
  }

 private:
  std::int64_t limit() const { return count() < 0 ? kEndless : count(); }
};

class SkipStage final : public OrderStageOf<SkipStage, CountedStage> {
 public:
  SkipStage(StagePtr input, std::int64_t count) : OrderStageOf(std::move(input), "skip", count) {}

  StageTraits traits() const override { return StageTraits::passing_over(StageTraits::Elements::Stretch); }
  Cardinality cardinality() const override { return skipped(input()->cardinality(), count()); }
  Cardinality total_rows() const override {
    if (count() < 0) return 0;
    const Cardinality all = input()->total_rows();
    const Cardinality rows = rows_of_first(*input(), count());
    if (rows.is_unknown()) return Stage::total_rows();
    return all.is_known() ? Cardinality(all.value() - rows.value()) : all;
  }
  template <class Stream>
  std::unique_ptr<Stream> make_order(const IterationContext& context) const {
    auto all = start_input<Stream>(*input(), context);
    if (count() < 0) return std::make_unique<TakeOf<Stream>>(std::move(all), 0);
    return std::make_unique<SkipOf<Stream>>(std::move(all), count());
  }
};

class ShardStage final : public OrderStageOf<ShardStage> {
 public:
  ShardStage(StagePtr input, std::int64_t shards, std::int64_t index)
      : OrderStageOf(std::move(input)), shards_(shards), index_(index) {
    if (is_hint() || (shards_ >= 1 && index_ >= 0 && index_ < shards_)) return;
    throw InvalidArgument(
        errors::kBadOption,
        {.what = str("the index of a shard must be from 0 to the number of shards - 1, got ", index_, " of ", shards_),
         .where = "shard",
         .help = "call shard(shards, index), such as shard(4, 0) for the first of four"});
  }

  std::string_view kind() const override { return "shard"; }
  std::string describe() const override {
    return is_hint() ? "shard(by AutoShardPolicy::Hint)" : str("shard(", shards_, ", ", index_, ")");
  }
  StageTraits traits() const override {
    StageTraits traits = StageTraits::passing_over(StageTraits::Elements::Picked);
    traits.is_shard_hint = is_hint();
    return traits;
  }
  Cardinality cardinality() const override {
    if (!is_hint()) return sharded(input()->cardinality(), shards_, index_);
    return input()->cardinality().is_infinite() ? Cardinality::infinite() : Cardinality::unknown();
  }
  Cardinality total_rows() const override {
    const Cardinality batches = input()->cardinality_if(Trust::Promised);
    const Cardinality all = input()->total_rows();
    const std::int64_t full = rows_of_full_batch(*input());
    if (is_hint() || full == 0 || !batches.is_known() || !all.is_known()) return Stage::total_rows();
    const bool has_last = batches.value() > 0 && (batches.value() - 1) % shards_ == index_;
    const std::int64_t lacking = has_last ? batches.value() * full - all.value() : 0;
    return sharded(batches, shards_, index_).value() * full - lacking;
  }
  template <class Stream>
  std::unique_ptr<Stream> make_order(const IterationContext& context) const {
    require_numbers();
    return std::make_unique<ShardOf<Stream>>(start_input<Stream>(*input(), context), shards_, index_);
  }

 private:
  bool is_hint() const { return shards_ == kShardHint; }
  void require_numbers() const {
    if (!is_hint()) return;
    throw FailedPrecondition(
        errors::kSharding,
        {.what = "shard(kShardHint, kShardHint) requires AutoShardPolicy::Hint",
         .where = "shard",
         .help = "distribute the dataset with_options({.auto_shard_policy = AutoShardPolicy::Hint})"});
  }

  std::int64_t shards_;
  std::int64_t index_;
};

}  // namespace

IteratorPtr take_shard(IteratorPtr elements, std::int64_t shards, std::int64_t index) {
  return std::make_unique<ShardOf<ElementIterator>>(std::move(elements), shards, index);
}

CountedStage::CountedStage(StagePtr input, std::string_view kind, std::int64_t count)
    : OrderStage(std::move(input)), kind_(kind), count_(count) {
  if (count_ < -1)
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("the count of ", kind_, " must be >= -1, got ", count_),
                           .where = std::string(kind_),
                           .help = str("give -1 to ", kind_, kind_ == "repeat" ? " for ever" : " all")});
}

std::string CountedStage::describe() const { return str(kind_, "(", count_, ")"); }

StagePtr make_take(StagePtr input, std::int64_t count) { return std::make_shared<TakeStage>(std::move(input), count); }
StagePtr make_skip(StagePtr input, std::int64_t count) { return std::make_shared<SkipStage>(std::move(input), count); }
StagePtr make_shard(StagePtr input, std::int64_t shards, std::int64_t index) {
  return std::make_shared<ShardStage>(std::move(input), shards, index);
}

}  // namespace lockstep::data
