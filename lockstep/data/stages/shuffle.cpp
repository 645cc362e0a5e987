#include <algorithm>
#include <numeric>

#include "lockstep/data/shuffle_buffer.h"
#include "lockstep/data/stages/order.h"

namespace lockstep::data {
namespace {

class ShuffleIndices final : public IndexIterator {
 public:
  ShuffleIndices(IndexIteratorPtr input, std::uint64_t key, std::int64_t capacity)
      : input_(std::move(input)), buffer_(key, capacity) {}

  std::size_t next(std::span<std::int64_t> indices) override {
    std::size_t written = 0;
    while (written < indices.size() && buffer_.next(indices[written], input_)) ++written;
    return written;
  }
  std::int64_t skip(std::int64_t count) override { return buffer_.skip(count, input_); }

 private:
  IndexReader input_;
  ShuffleBuffer<std::int64_t> buffer_;
};

/// Shuffles places: an element that fails does so where it would have stood.
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

  /// Where the size of the input is known the choices are made with numbers first; then only the elements that stay in
  /// the buffer are computed.
  std::int64_t skip(std::int64_t count) override {
    if (input_size_.is_unknown()) return ElementIterator::skip(count);
    ShuffleBuffer<std::int64_t> plan = buffer_.numbered();
    const std::int64_t held = buffer_.size();
    std::int64_t next_number = held;  // of the element that the input would give next
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
                      auto all = start_input<Stream>(below, context.below(0));
                      if constexpr (std::is_same_v<Stream, IndexIterator>)
                        return std::make_unique<ShuffleIndices>(std::move(all), key, buffer_size);
                      else
                        return std::make_unique<ShuffleIterator>(std::move(all), key, buffer_size,
                                                                 below.cardinality_if(Trust::Certain));
                    });
}

}  // namespace lockstep::data
