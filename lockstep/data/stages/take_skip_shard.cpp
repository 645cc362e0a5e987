#include <algorithm>
#include <utility>

#include "lockstep/data/stages/order.h"

namespace lockstep::data {
namespace {

/// Selected places of a stream: `first`, `first + stride`, ..., at most `count` of them if given.
struct Picked {
  std::int64_t first = 0;
  std::int64_t stride = 1;
  std::optional<std::int64_t> count = std::nullopt;  ///< -1: all
  bool is_hint = false;                              ///< a policy will fill in the numbers

  std::int64_t most() const { return count.value_or(-1) < 0 ? kEndless : *count; }
  /// How many of them a stream of `all` places has.
  Cardinality in(Cardinality all) const {
    if (is_hint) return all.is_infinite() ? all : Cardinality::unknown();
    return taken(sharded(skipped(all, first), stride, 0), count.value_or(-1));
  }
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
      : input_(std::move(input)), places_(places), left_(places.most()), gap_(places.first) {}

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

  // The place right after our last one: the next may be in a part of the input that has not been reached.
  void locate(std::int64_t consumed, Position& position) const override {
    consumed = std::min(consumed, places_.most());
    position.push(consumed);
    input_->locate(consumed == 0 ? 0 : places_.first + skipped_input(consumed - 1, places_.stride) + 1, position);
  }
  void restore(Position& position) override {
    const std::int64_t consumed = position.pop();
    left_ = places_.most() - consumed;
    gap_ = consumed == 0 ? places_.first : places_.stride - 1;
    input_->restore(position);
  }

  std::size_t read(std::span<Item> items) {
    items = items.first(static_cast<std::size_t>(std::min<std::int64_t>(left_, std::ssize(items))));
    std::size_t written = 0;
    while (written < items.size() && pass_others()) {
      // All at once if they are adjacent.
      const std::span<Item> wanted = items.subspan(written, places_.stride == 1 ? items.size() - written : 1);
      left_ -= std::ssize(wanted);  // counts even if it fails
      const std::size_t got = this->read_from(*input_, wanted);
      written += got;
      if (got < wanted.size()) break;
    }
    if (written < items.size()) left_ = 0;
    return written;
  }

 private:
  /// Advances to our next place; false at the end.
  bool pass_others() {
    const std::int64_t gap = std::exchange(gap_, places_.stride - 1);
    return gap == 0 || input_->skip(gap) == gap;
  }

  std::unique_ptr<Stream> input_;
  Picked places_;
  std::int64_t left_;  // places left of `count`
  std::int64_t gap_;   // other places before our next one
};

/// The rows of every batch but the last; 0 if unknown.
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

/// The rows of the selected batches of a stage.
Cardinality rows_of_picked(const Stage& below, const Picked& places) {
  const Cardinality all = below.total_rows();
  if (places.first == 0 && places.stride == 1 && places.most() == kEndless) return all;
  const Cardinality batches = below.cardinality_if(Reliability::Promised);
  const Cardinality picked = places.in(batches);
  const std::int64_t full = rows_of_full_batch(below);
  if (picked == Cardinality(0)) return picked;
  if (full == 0 || all.is_unknown() || !picked.is_known()) return picked.is_infinite() ? all : Cardinality::unknown();
  const Cardinality rows = multiplied(picked, full);
  const bool has_last = rows.is_known() && batches.is_known() &&
                        places.first + (picked.value() - 1) * places.stride == batches.value() - 1;
  return has_last ? Cardinality(rows.value() - (batches.value() * full - all.value())) : rows;
}

StagePtr make_pick(StagePtr input, StageDescription description, const Picked& places) {
  description.cardinality = [places](const Stage& below) { return places.in(below.cardinality()); };
  description.total_rows = [places](const Stage& below) { return rows_of_picked(below, places); };
  description.traits.is_shard_hint = places.is_hint;
  return make_order(std::move(input), std::move(description),
                    [places]<class Stream>(const Stage& below, const IterationContext& context) {
                      if (places.is_hint) throw_unfilled_hint();
                      return std::make_unique<PickOf<Stream>>(start_input<Stream>(below, context), places);
                    });
}

}  // namespace

IteratorPtr take_shard(IteratorPtr elements, std::int64_t shards, std::int64_t index) {
  return std::make_unique<PickOf<ElementIterator>>(std::move(elements), Picked{.first = index, .stride = shards});
}

void check_count(std::string_view kind, std::int64_t count) {
  if (count >= -1) return;
  refuse_option(std::string(kind), str("the count of ", kind, " must be >= -1, got ", count),
                str("give -1 to ", kind, kind == "repeat" ? " endlessly" : " all"));
}

StagePtr make_take(StagePtr input, std::int64_t count) {
  check_count("take", count);
  return make_pick(std::move(input),
                   {.kind = "take",
                    .text = str("take(", count, ")"),
                    .traits = StageTraits::passing_over(StageTraits::Elements::Stretch)},
                   {.count = count});
}

StagePtr make_skip(StagePtr input, std::int64_t count) {
  check_count("skip", count);
  return make_pick(std::move(input),
                   {.kind = "skip",
                    .text = str("skip(", count, ")"),
                    .traits = StageTraits::passing_over(StageTraits::Elements::Stretch)},
                   count < 0 ? Picked{.count = 0} : Picked{.first = std::min(count, kEndless)});
}

StagePtr make_shard(StagePtr input, std::int64_t shards, std::int64_t index) {
  const bool is_hint = shards == kShardHint;
  if (!is_hint && (shards < 1 || index < 0 || index >= shards))
    refuse_option("shard",
                  str("the index of a shard must be from 0 to the number of shards - 1, got ", index, " of ", shards),
                  "call shard(shards, index), such as shard(4, 0) for the first of four");
  return make_pick(std::move(input),
                   {.kind = "shard",
                    .text = is_hint ? "shard(by AutoShardPolicy::Hint)" : str("shard(", shards, ", ", index, ")"),
                    .traits = StageTraits::passing_over(StageTraits::Elements::Picked)},
                   {.first = index, .stride = shards, .is_hint = is_hint});
}

}  // namespace lockstep::data
