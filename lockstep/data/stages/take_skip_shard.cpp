#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/shard_plan.h"
#include "lockstep/data/stages/order.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

class TakeIndices final : public IndexIterator {
 public:
  TakeIndices(std::unique_ptr<IndexIterator> input, std::int64_t count) : input_(std::move(input)), left_(count) {}

  std::size_t next(std::span<std::int64_t> indices) override {
    const auto wanted =
        static_cast<std::size_t>(std::min<std::int64_t>(left_, static_cast<std::int64_t>(indices.size())));
    const std::size_t got = input_->next(indices.first(wanted));
    left_ -= static_cast<std::int64_t>(got);
    return got;
  }
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t got = input_->skip(std::min(count, left_));
    left_ -= got;
    return got;
  }

 private:
  std::unique_ptr<IndexIterator> input_;
  std::int64_t left_;
};

class TakeIterator final : public ElementIterator {
 public:
  TakeIterator(IteratorPtr input, std::int64_t count) : input_(std::move(input)), count_(count), left_(count) {}

  bool next(Element& element) override {
    if (left_ == 0 || !input_->next(element)) {
      left_ = 0;
      return false;
    }
    --left_;
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t got = input_->skip(std::min(count, left_));
    left_ -= got;
    return got;
  }
  void locate(std::int64_t consumed, Position& position) const override {
    position.push(std::min(consumed, count_));
    input_->locate(std::min(consumed, count_), position);
  }
  void restore(Position& position) override {
    left_ = count_ - position.pop();
    input_->restore(position);
  }

 private:
  IteratorPtr input_;
  std::int64_t count_;
  std::int64_t left_;
};

class SkipIndices final : public IndexIterator {
 public:
  SkipIndices(std::unique_ptr<IndexIterator> input, std::int64_t count) : input_(std::move(input)), first_(count) {}

  std::size_t next(std::span<std::int64_t> indices) override {
    start();
    return input_->next(indices);
  }
  std::int64_t skip(std::int64_t count) override {
    start();
    return input_->skip(count);
  }

 private:
  void start() {
    if (first_ > 0) input_->skip(std::exchange(first_, 0));
  }
  std::unique_ptr<IndexIterator> input_;
  std::int64_t first_;
};

class SkipIterator final : public ElementIterator {
 public:
  SkipIterator(IteratorPtr input, std::int64_t count) : input_(std::move(input)), count_(count), first_(count) {}

  bool next(Element& element) override {
    start();
    return input_->next(element);
  }
  std::int64_t skip(std::int64_t count) override {
    start();
    return input_->skip(count);
  }
  void locate(std::int64_t consumed, Position& position) const override {
    input_->locate(consumed + (consumed > 0 ? count_ : 0), position);
    position.push(consumed > 0 ? 0 : count_);
  }
  void restore(Position& position) override {
    input_->restore(position);
    first_ = position.pop();
  }

 private:
  void start() {
    if (first_ > 0) input_->skip(std::exchange(first_, 0));
  }
  IteratorPtr input_;
  std::int64_t count_;
  std::int64_t first_;
};

class ShardIndices final : public IndexIterator {
 public:
  ShardIndices(std::unique_ptr<IndexIterator> input, std::int64_t shards, std::int64_t index)
      : input_(std::move(input)), shards_(shards), gap_(index) {}

  std::size_t next(std::span<std::int64_t> indices) override {
    std::size_t written = 0;
    while (written < indices.size()) {
      if (input_->skip(gap_) < gap_ || input_->next(indices.subspan(written, 1)) == 0) break;
      gap_ = shards_ - 1;
      ++written;
    }
    return written;
  }
  std::int64_t skip(std::int64_t count) override {
    if (count <= 0) return 0;
    const std::int64_t wanted = gap_ + 1 + skipped_input(count - 1, shards_);
    const std::int64_t got = input_->skip(wanted);
    if (got < gap_ + 1) return 0;
    const std::int64_t mine = (got - gap_ - 1) / shards_ + 1;
    gap_ = shards_ - 1;
    return mine;
  }

 private:
  std::unique_ptr<IndexIterator> input_;
  std::int64_t shards_;
  std::int64_t gap_;  // elements of others before the next of ours
};

class ShardIterator final : public ElementIterator {
 public:
  ShardIterator(IteratorPtr input, std::int64_t shards, std::int64_t index)
      : input_(std::move(input)), shards_(shards), index_(index), gap_(index) {}

  bool next(Element& element) override {
    const std::int64_t gap = std::exchange(gap_, shards_ - 1);
    return (gap == 0 || input_->skip(gap) == gap) && input_->next(element);
  }
  std::int64_t skip(std::int64_t count) override {
    if (count <= 0) return 0;
    const std::int64_t got = input_->skip(gap_ + 1 + skipped_input(count - 1, shards_));
    const std::int64_t mine = got < gap_ + 1 ? 0 : (got - gap_ - 1) / shards_ + 1;
    gap_ = shards_ - 1;
    return mine;
  }
  void locate(std::int64_t consumed, Position& position) const override {
    position.push(consumed > 0 ? shards_ - 1 : index_);
    input_->locate(consumed > 0 ? (consumed - 1) * shards_ + index_ + 1 : 0, position);
  }
  void restore(Position& position) override {
    gap_ = position.pop();
    input_->restore(position);
  }

 private:
  IteratorPtr input_;
  std::int64_t shards_;
  std::int64_t index_;
  std::int64_t gap_;
};

void check_count(std::int64_t count, const char* stage) {
  if (count < -1)
    throw InvalidArgument(errors::kBadOption,
                          {.what = str(stage, " takes a number of elements or -1, not ", count), .where = stage});
}

}  // namespace

TakeStage::TakeStage(StagePtr input, std::int64_t count) : OrderStage({std::move(input)}), count_(count) {
  check_count(count_, "take");
}
std::string TakeStage::describe() const { return str("take(", count_, ")"); }
StagePtr TakeStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<TakeStage>(std::move(inputs.front()), count_);
}
std::unique_ptr<IndexIterator> TakeStage::make_index_iterator(const IterationContext& context) const {
  return std::make_unique<TakeIndices>(input()->make_index_iterator(context), count_ < 0 ? kAll : count_);
}
IteratorPtr TakeStage::make_iterator(const IterationContext& context) const {
  if (auto rows = row_source()) return make_row_iterator(std::move(rows), make_index_iterator(context));
  return std::make_unique<TakeIterator>(input()->iterate(context), count_ < 0 ? kAll : count_);
}

SkipStage::SkipStage(StagePtr input, std::int64_t count) : OrderStage({std::move(input)}), count_(count) {
  check_count(count_, "skip");
}
std::string SkipStage::describe() const { return str("skip(", count_, ")"); }
StagePtr SkipStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<SkipStage>(std::move(inputs.front()), count_);
}
std::unique_ptr<IndexIterator> SkipStage::make_index_iterator(const IterationContext& context) const {
  if (count_ < 0) return std::make_unique<TakeIndices>(input()->make_index_iterator(context), 0);
  return std::make_unique<SkipIndices>(input()->make_index_iterator(context), count_);
}
IteratorPtr SkipStage::make_iterator(const IterationContext& context) const {
  if (auto rows = row_source()) return make_row_iterator(std::move(rows), make_index_iterator(context));
  if (count_ < 0) return std::make_unique<TakeIterator>(input()->iterate(context), 0);
  return std::make_unique<SkipIterator>(input()->iterate(context), count_);
}

ShardStage::ShardStage(StagePtr input, std::int64_t shards, std::int64_t index)
    : OrderStage({std::move(input)}), shards_(shards), index_(index) {
  if (!is_hint()) check_shard(shards_, index_);
}
std::string ShardStage::describe() const {
  return is_hint() ? "shard(by AutoShardPolicy::Hint)" : str("shard(", shards_, ", ", index_, ")");
}
StagePtr ShardStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<ShardStage>(std::move(inputs.front()), shards_, index_);
}
Cardinality ShardStage::cardinality() const {
  if (!is_hint()) return sharded(input()->cardinality(), shards_, index_);
  return input()->cardinality().is_infinite() ? Cardinality::infinite() : Cardinality::unknown();
}
void ShardStage::check_not_hint() const {
  if (is_hint())
    throw FailedPrecondition(
        errors::kSharding,
        {.what = "shard(kShardHint, kShardHint) waits for numbers that only AutoShardPolicy::Hint gives",
         .where = "shard",
         .help = "set auto_shard_policy = AutoShardPolicy::Hint in the dataset's options"});
}
std::unique_ptr<IndexIterator> ShardStage::make_index_iterator(const IterationContext& context) const {
  check_not_hint();
  return std::make_unique<ShardIndices>(input()->make_index_iterator(context), shards_, index_);
}
IteratorPtr ShardStage::make_iterator(const IterationContext& context) const {
  check_not_hint();
  if (auto rows = row_source()) return make_row_iterator(std::move(rows), make_index_iterator(context));
  return std::make_unique<ShardIterator>(input()->iterate(context), shards_, index_);
}

}  // namespace lockstep::data
