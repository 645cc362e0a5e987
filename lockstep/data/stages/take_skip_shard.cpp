#include <algorithm>
#include <utility>

#include "lockstep/data/stages/order.h"

namespace lockstep::data {
namespace {

/// Which places of a stream: `first`, `first + stride`, ..., and no more than `count` of them if there is one.
struct Picked {
  std::int64_t first = 0;
  std::int64_t stride = 1;
  std::optional<std::int64_t> count = std::nullopt;
  bool is_hint = false;  ///< they are not known before a policy fills them in
};

[[noreturn]] void throw_unfilled_hint() {
  throw FailedPrecondition(
      errors::kSharding, {.what = "shard(kShardHint, kShardHint) requires AutoShardPolicy::Hint",
                          .where = "shard",
                          .help = "distribute the dataset with_options({.auto_shard_policy = AutoShardPolicy::Hint})"});
}

template <class Stream>
class PickOf final : public OrderOf<PickOf<Stream>, Stream> {
 public:
  using typename OrderOf<PickOf, Stream>::Item;

  PickOf(std::unique_ptr<Stream> input, const Picked& places)
      : input_(std::move(input)), places_(places), left_(places.count.value_or(kEndless)), gap_(places.first) {
    if (places.is_hint) throw_unfilled_hint();
  }

  std::int64_t skip(std::int64_t count) override {
    count = std::min(count, left_);
    if (count <= 0) return 0;
    const std::int64_t before = gap_ + 1;
    const std::int64_t got = input_->skip(before + skipped_input(count - 1, places_.stride));
    const std::int64_t mine = got < before ? 0 : (got - before) / places_.stride + 1;
    gap_ = places_.stride - 1;
    left_ -= mine;
    return mine;
  }

  // The place right before the next of ours.
  void locate(std::int64_t consumed, Position& position) const override {
    if (places_.count) {
      consumed = std::min(consumed, *places_.count);
      position.push(consumed);
    }
    input_->locate(places_.first + skipped_input(consumed, places_.stride), position);
  }
  void restore(Position& position) override {
    if (places_.count) left_ = *places_.count - position.pop();
    gap_ = 0;
    input_->restore(position);
  }

  std::size_t read(std::span<Item> items) {
    items = items.first(static_cast<std::size_t>(std::min<std::int64_t>(left_, std::ssize(items))));
    std::size_t written = 0;
    while (written < items.size() && pass_others()) {
      // All at once where they lie side by side.
      const std::span<Item> wanted = items.subspan(written, places_.stride == 1 ? items.size() - written : 1);
      left_ -= std::ssize(wanted);  // also if it fails
      const std::size_t got = this->read_from(*input_, wanted);
      written += got;
      if (got < wanted.size()) break;
    }
    if (written < items.size()) left_ = 0;
    return written;
  }

 private:
  /// Goes to the next place of ours; false at the end.
  bool pass_others() {
    const std::int64_t gap = std::exchange(gap_, places_.stride - 1);
    return gap == 0 || input_->skip(gap) == gap;
  }

  std::unique_ptr<Stream> input_;
  Picked places_;
  std::int64_t left_;  // of `count`
  std::int64_t gap_;   // places of others before the next of ours
};

StagePtr make_pick(StagePtr input, StageDescription description, const Picked& places) {
  return make_order(std::move(input), std::move(description),
                    [places]<class Stream>(const Stage& below, const IterationContext& context) {
                      return std::make_unique<PickOf<Stream>>(start_input<Stream>(below, context), places);
                    });
}

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
  return std::make_unique<PickOf<ElementIterator>>(std::move(elements), Picked{.first = index, .stride = shards});
}

void check_count(std::string_view kind, std::int64_t count) {
  if (count >= -1) return;
  refuse_option(std::string(kind), str("the count of ", kind, " must be >= -1, got ", count),
                str("give -1 to ", kind, kind == "repeat" ? " for ever" : " all"));
}

StagePtr make_take(StagePtr input, std::int64_t count) {
  check_count("take", count);
  return make_pick(
      std::move(input),
      {.kind = "take",
       .text = str("take(", count, ")"),
       .traits = StageTraits::passing_over(StageTraits::Elements::Stretch),
       .cardinality = [count](const Stage& below) { return taken(below.cardinality(), count); },
       .total_rows =
           [count](const Stage& below) { return count < 0 ? below.total_rows() : rows_of_first(below, count); }},
      {.count = count < 0 ? kEndless : count});
}

StagePtr make_skip(StagePtr input, std::int64_t count) {
  check_count("skip", count);
  return make_pick(std::move(input),
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
                   count < 0 ? Picked{.count = 0} : Picked{.first = std::min(count, kEndless)});
}

StagePtr make_shard(StagePtr input, std::int64_t shards, std::int64_t index) {
  const bool is_hint = shards == kShardHint;
  if (!is_hint && (shards < 1 || index < 0 || index >= shards))
    refuse_option("shard",
                  str("the index of a shard must be from 0 to the number of shards - 1, got ", index, " of ", shards),
                  "call shard(shards, index), such as shard(4, 0) for the first of four");
  StageTraits traits = StageTraits::passing_over(StageTraits::Elements::Picked);
  traits.is_shard_hint = is_hint;
  return make_pick(
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
      {.first = index, .stride = shards, .is_hint = is_hint});
}

}  // namespace lockstep::data
