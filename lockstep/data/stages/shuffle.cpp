#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/data/shuffle_buffer.h"
#include "lockstep/data/stages/keyed_permutation.h"
#include "lockstep/data/stages/order.h"
#include "lockstep/data/stages/shuffle_indices.h"

namespace lockstep::data {
namespace {

/// The progress of a pass over a computed order.
class PermutedPass {
 public:
  explicit PermutedPass(const KeyedPermutation& order) : order_(order) {}

  std::int64_t size() const { return static_cast<std::int64_t>(order_.size()); }
  std::int64_t left() const { return size() - given_; }
  /// The next place of the input; there must be one left.
  std::int64_t next() { return static_cast<std::int64_t>(order_(static_cast<std::uint64_t>(given_++))); }
  std::int64_t skip(std::int64_t count) {
    const std::int64_t skipped = std::clamp<std::int64_t>(left(), 0, count);
    given_ += skipped;
    return skipped;
  }

 private:
  KeyedPermutation order_;
  std::int64_t given_ = 0;
};

/// A full shuffle of many elements: reads them all before yielding the first, in a computed order.
class PermutedElements final : public ElementIterator {
 public:
  PermutedElements(IteratorPtr input, const KeyedPermutation& order) : input_(std::move(input)), pass_(order) {}

  bool next(Element& element) override {
    if (pass_.left() == 0) return false;
    read_all();
    all_[static_cast<std::size_t>(pass_.next())].give(element);
    return true;
  }
  std::int64_t skip(std::int64_t count) override { return pass_.skip(count); }

 private:
  // An exception here concerns the whole stream. Nothing is kept then, so that the next call does not yield places that
  // were never read.
  void read_all() {
    if (!all_.empty()) return;
    std::vector<Place> all(static_cast<std::size_t>(pass_.size()));
    for (Place& place : all) place.read(*input_);
    all_ = std::move(all);
  }

  IteratorPtr input_;
  PermutedPass pass_;
  std::vector<Place> all_;
};

/// A full shuffle of many row numbers. A source's own need not be read, because they equal the places.
class PermutedIndices final : public IndexIterator {
 public:
  PermutedIndices(IndexIteratorPtr input, const KeyedPermutation& order) : input_(std::move(input)), pass_(order) {}

  std::size_t next(std::span<std::int64_t> indices) override {
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(pass_.left(), std::ssize(indices)));
    if (input_ && count > 0 && all_.empty()) read_numbers(*input_, pass_.size(), all_);
    for (std::int64_t& index : indices.first(count)) {
      index = pass_.next();
      if (input_) index = all_[static_cast<std::size_t>(index)];
    }
    return count;
  }
  std::int64_t skip(std::int64_t count) override { return pass_.skip(count); }

 private:
  IndexIteratorPtr input_;  ///< null for a source's own order
  PermutedPass pass_;
  std::vector<std::int64_t> all_;
};

/// Shuffles places through a buffer: a failed element fails at its shuffled place.
class ShuffleIterator final : public ElementIterator {
 public:
  ShuffleIterator(IteratorPtr input, std::uint64_t key, std::int64_t capacity, Cardinality input_size)
      : input_(std::move(input)), buffer_(key, capacity), input_size_(input_size) {}

  bool next(Element& element) override {
    Place place;
    const auto pull = [&](Place& fresh) {
      const bool more = fresh.read(*input_);
      if (more) ++pulled_;
      return more;
    };
    if (!buffer_.next(place, pull)) return false;
    place.give(element);
    return true;
  }

  /// If the size of the input is known, the choices are first made with numbers; then only the elements that stay in
  /// the buffer are computed.
  std::int64_t skip(std::int64_t count) override {
    if (input_size_.is_unknown()) return ElementIterator::skip(count);
    ShuffleBuffer<std::int64_t> plan = buffer_.numbered();
    const std::int64_t held = buffer_.size();
    std::int64_t next_number = held;  // number of the input's next element
    const std::int64_t last_number =
        input_size_.is_infinite() ? std::numeric_limits<std::int64_t>::max() : held + input_size_.value() - pulled_;
    const std::int64_t skipped = plan.skip(count, [&](std::int64_t& number) {
      if (next_number >= last_number) return false;
      number = next_number++;
      return true;
    });
    carry_out(plan, held, next_number);
    return skipped;
  }

  // The same format as a shuffle of numbers: writes no mark, and skips a mark when reading.
  void locate(std::int64_t consumed, Position& position) const override {
    position.push(consumed);
    position.push(0);
  }
  void restore(Position& position) override {
    const std::int64_t consumed = position.pop();
    for (std::int64_t left = position.pop(); left > 0; --left) position.pop();
    skip(consumed);
  }

 private:
  void carry_out(ShuffleBuffer<std::int64_t>& plan, std::int64_t held, std::int64_t next_number) {
    std::vector<Place> kept(plan.items().size());
    std::vector<std::size_t> places(kept.size());
    std::iota(places.begin(), places.end(), std::size_t{0});
    std::ranges::sort(places, {}, [&](std::size_t place) { return plan.items()[place]; });
    std::int64_t at = held;
    for (const std::size_t place : places) {
      const std::int64_t number = plan.items()[place];
      if (number < held) {
        kept[place] = std::move(buffer_.items()[static_cast<std::size_t>(number)]);
        continue;
      }
      input_->skip(number - at);
      kept[place].read(*input_);
      at = number + 1;
    }
    input_->skip(next_number - at);
    pulled_ += next_number - held;
    buffer_.items() = std::move(kept);
    buffer_.follow(plan);
  }

  IteratorPtr input_;
  ShuffleBuffer<Place> buffer_;
  Cardinality input_size_;
  std::int64_t pulled_ = 0;
};

/// The number of elements of a full shuffle with a computed order; nothing if a buffer determines the order. Depends
/// only on the stages, so that elements and numbers come in the same order.
std::optional<std::uint64_t> permuted_size(const Stage& below, std::int64_t buffer_size) {
  const Cardinality size = below.cardinality_if(Reliability::Certain);
  if (!size.is_known() || size.value() <= kMostStoredNumbers || size.value() > buffer_size) return std::nullopt;
  return static_cast<std::uint64_t>(size.value());
}

template <class Stream>
std::unique_ptr<Stream> start_shuffle(const Stage& below, const IterationContext& context, std::uint64_t key,
                                      std::int64_t buffer_size) {
  const auto permuted = permuted_size(below, buffer_size);
  auto all = start_input<Stream>(below, context);
  if constexpr (std::is_same_v<Stream, IndexIterator>) {
    if (!permuted) return shuffle_indices(std::move(all), key, buffer_size);
    if (below_plain_stages(below).inputs().empty()) all = nullptr;
    return std::make_unique<PermutedIndices>(std::move(all), KeyedPermutation(key, *permuted));
  } else {
    if (permuted) return std::make_unique<PermutedElements>(std::move(all), KeyedPermutation(key, *permuted));
    return std::make_unique<ShuffleIterator>(std::move(all), key, buffer_size,
                                             below.cardinality_if(Reliability::Certain));
  }
}

}  // namespace

StagePtr make_shuffle(StagePtr input, std::int64_t buffer_size, ShuffleOptions options) {
  if (buffer_size < 1)
    refuse_option("shuffle", str("the buffer size of shuffle must be >= 1, got ", buffer_size),
                  "give the number of elements of the dataset for a perfect shuffle, or as many as memory allows");
  StageTraits traits = StageTraits::passing_over(StageTraits::Elements::Picked);
  traits.only_buffers = true;
  return make_order(std::move(input),
                    {.kind = "shuffle",
                     .text = str("shuffle(", buffer_size, options.seed ? str(", seed ", *options.seed) : "",
                                 options.reshuffle_each_iteration ? ")" : ", the same order in each pass)"),
                     .traits = traits,
                     .total_rows = &Stage::total_rows},
                    [=]<class Stream>(const Stage& below, const IterationContext& context) -> std::unique_ptr<Stream> {
                      const std::uint64_t seed = options.seed ? *options.seed : context.stage_seed();
                      const std::uint64_t key = options.reshuffle_each_iteration ? mix(seed, context.epoch) : mix(seed);
                      return start_shuffle<Stream>(below, context.below(0), key, buffer_size);
                    });
}

}  // namespace lockstep::data
