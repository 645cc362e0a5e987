#include "lockstep/data/distribute/row_memory.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "lockstep/data/place.h"
#include "lockstep/data/stage_meter.h"
#include "lockstep/data/stages/described_stage.h"

namespace lockstep::data {

/// Places [begin, end) of an iterator, as far as it has passed them.
class PlaceMemory {
 public:
  void keep(std::int64_t begin, std::int64_t end) {
    for (; begin_ < begin && !places_.empty(); ++begin_) places_.pop_front();
    begin_ = begin;
    end_ = end;
  }

  void start(IteratorPtr input) { input_ = std::move(input); }

  bool read_next(Element& element) {
    Place place;
    std::swap(place.element, element);
    if (!place.read(*input_)) return false;
    // Functions above may write into what they are given.
    if (wants(passed_)) places_.push_back({place.error ? Element() : own_copy(place.element), place.error});
    ++passed_;
    place.give(element);
    return true;
  }

  std::int64_t skip(std::int64_t count) {
    std::int64_t skipped = 0;
    while (skipped < count) {
      if (!wants(passed_)) {
        const std::int64_t wanted = count - skipped;
        const std::int64_t part = passed_ < begin_ ? std::min(wanted, begin_ - passed_) : wanted;
        const std::int64_t got = input_->skip(part);
        passed_ += got;
        skipped += got;
        if (got < part) break;
        continue;
      }
      Place place;
      if (!place.read(*input_)) break;
      places_.push_back(std::move(place));
      ++passed_;
      ++skipped;
    }
    return skipped;
  }

  std::int64_t begin() const { return begin_; }
  std::int64_t remembered_end() const { return begin_ + std::ssize(places_); }
  Place recall(std::int64_t number) const {
    const Place& place = places_.at(static_cast<std::size_t>(number - begin_));
    return {own_copy(place.element), place.error};
  }
  std::string origin(std::int64_t number, std::int64_t row) const { return input_->origin(number, row); }

 private:
  bool wants(std::int64_t number) const { return begin_ <= number && number < end_; }

  IteratorPtr input_;
  std::int64_t passed_ = 0;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  std::deque<Place> places_;
};

namespace {

class RememberingIterator final : public ElementIterator {
 public:
  explicit RememberingIterator(std::shared_ptr<PlaceMemory> memory) : memory_(std::move(memory)) {}

  bool next(Element& element) override { return memory_->read_next(element); }
  std::int64_t skip(std::int64_t count) override { return memory_->skip(count); }
  std::string origin(std::int64_t number, std::int64_t row) const override { return memory_->origin(number, row); }

 private:
  std::shared_ptr<PlaceMemory> memory_;
};

/// Can only be read where there are remembered places.
class RecallingIterator final : public ElementIterator {
 public:
  explicit RecallingIterator(std::shared_ptr<const PlaceMemory> memory) : memory_(std::move(memory)) {}

  bool next(Element& element) override {
    if (at_ >= memory_->remembered_end()) return false;
    memory_->recall(at_++).give(element);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = std::clamp<std::int64_t>(memory_->remembered_end() - at_, 0, count);
    at_ += skipped;
    return skipped;
  }
  std::string origin(std::int64_t number, std::int64_t row) const override { return memory_->origin(number, row); }

 private:
  std::shared_ptr<const PlaceMemory> memory_;
  std::int64_t at_ = 0;
};

enum class Use { Remember, Recall };

/// Passes elements on and remembers them, or gives what another such stage has remembered.
StagePtr make_memory(StagePtr input, std::shared_ptr<PlaceMemory> memory, Use use) {
  return make_stage({std::move(input)},
                    {.kind = "row_memory",
                     .traits = {.is_measured = false},  // it is only a means of its reader
                     .iterate = [memory = std::move(memory), use](const Stage& below,
                                                                  const IterationContext& context) -> IteratorPtr {
                       if (use == Use::Recall) return std::make_unique<RecallingIterator>(memory);
                       memory->start(below.iterate(context));
                       return std::make_unique<RememberingIterator>(memory);
                     }});
}

/// `rows` with a memory below the last stages that pass rows over for nothing.
StagePtr with_memory(const StagePtr& rows, const std::shared_ptr<PlaceMemory>& memory, Use use) {
  std::vector<StagePtr> above;
  StagePtr below = rows;
  const auto passes_over = [](const StageTraits& traits) { return traits.is_one_to_one() && traits.passes_over; };
  for (; passes_over(below->traits()); below = below->input()) above.push_back(below);
  StagePtr whole = make_memory(below, memory, use);
  for (auto stage = above.rbegin(); stage != above.rend(); ++stage) whole = (*stage)->with_inputs({whole});
  return whole;
}

}  // namespace

RowMemory::RowMemory(const StagePtr& rows, const IterationContext& context)
    : memory_(std::make_shared<PlaceMemory>()),
      remembering_(with_memory(rows, memory_, Use::Remember)),
      recalling_(with_memory(rows, memory_, Use::Recall)),
      context_(context) {
  if (!context_.meter) return;
  for (const Stage *copy = remembering_.get(), *original = rows.get(); copy->traits().is_measured;
       copy = copy->input().get(), original = original->input().get())
    measured_as_.push_back(context_.meter->measure_as(*copy, *original));
}

std::unique_ptr<RowStream> RowMemory::read() { return rows_of_elements(*remembering_, context_); }

void RowMemory::keep(std::int64_t begin, std::int64_t end) { memory_->keep(begin, end); }

std::unique_ptr<RowStream> RowMemory::read_again(const RowStream& first) const {
  IteratorPtr elements = recalling_->iterate(context_.unmeasured());
  elements->skip(memory_->begin());
  return rows_left_in(std::move(elements), recalling_->element_spec(), first.seen());
}

}  // namespace lockstep::data
