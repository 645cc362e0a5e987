#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/element.h"
#include "lockstep/data/iterator_state.h"
#include "lockstep/data/position.h"

namespace lockstep::data {

class DeferredIterator;
class MetObstacle;
struct StageCounters;

/// What an iteration over a pipeline is given. It decides all random choices, so that two iterations with equal
/// contexts yield the same elements, on whatever machine.
struct LOCKSTEP_EXPORT IterationContext {
  /// Where stages without a seed of their own take theirs from. `distribute` gives the strategy's; plain iteration
  /// uses the seed of LibTorch's default generator.
  std::uint64_t job_seed = 0;
  /// Counts passes over the data: iterations from outside, and within them those of `repeat`. Shuffles that
  /// reshuffle depend on it.
  std::uint64_t epoch = 0;
  /// Which of several random stages asks; see `below`.
  std::uint64_t path = 0;
  /// Measures stages if somebody wants a report; null costs nothing.
  std::shared_ptr<StageMeter> meter = nullptr;
  /// Of the stage that is being started; `Stage::iterate` sets it.
  std::shared_ptr<StageCounters> counters = nullptr;
  /// Within a dataset that the function of a `flat_map` or `interleave` made: what keeps positions from being exact is
  /// noted there, since it cannot be seen beforehand.
  std::shared_ptr<MetObstacle> met_obstacle = nullptr;
  /// A pass that was begun before and is resumed: what was counted then is not counted again.
  bool is_resumed = false;

  /// For input `branch` of a stage with several inputs, or a stage that is itself random. Stages with one input that
  /// draw no numbers pass their own context on: so inserting a `shard` or a `prefetch` changes no shuffle.
  IterationContext below(std::uint64_t branch) const;
  /// For pass `index` of a `repeat`, element `index` of a `flat_map`. Pass 0 is the same as no `repeat` at all.
  IterationContext pass(std::uint64_t index) const;
  /// The seed of an unseeded stage at this place.
  std::uint64_t stage_seed() const;
  /// The same for all iterators that give the elements of this pass.
  std::uint64_t pass_key() const;
  /// For what is read besides: the same elements, not measured.
  IterationContext unmeasured() const;
};

/// The seed of plain iterations: LibTorch's default generator's.
LOCKSTEP_EXPORT std::uint64_t default_job_seed();

/// One pass over a stage's stream, which is a sequence of places: at each stands an element, or the error that took
/// its place. An element that fails keeps its place, so that whatever counts (rows of a batch, `take`, `shard`, random
/// numbers, positions) counts the same whether rows are computed, left out, or computed by somebody else. Used by one
/// thread at a time; destroying it in the middle is always fine.
class LOCKSTEP_EXPORT PlaceIterator {
 public:
  PlaceIterator() = default;
  PlaceIterator(const PlaceIterator&) = delete;
  PlaceIterator& operator=(const PlaceIterator&) = delete;
  virtual ~PlaceIterator();

  /// Passes over up to `count` places and says how many there were; what fails there is no error. One-to-one stages
  /// pass this on to their input, so that rows that are left out are not computed; sources that can seek jump.
  virtual std::int64_t skip(std::int64_t count) = 0;

  /// Describes the place behind the first `consumed` ones of this iteration, which may lie before what was read when a
  /// stage above reads ahead. May be called while another thread reads (prefetch), so it only looks at what does not
  /// change, or locks. Most stages need no more than the count. What is written depends on the stage alone, not on how
  /// it is carried out: another program may do it in another way.
  virtual void locate(std::int64_t consumed, Position& position) const;
  /// Brings a new iterator of the same stage and context to a place that `locate` wrote.
  virtual void restore(Position& position);
};

class LOCKSTEP_EXPORT ElementIterator : public PlaceIterator {
 public:
  /// Writes the next element; false at the end, and from then on. `element` may hold anything before. What it throws
  /// has a place of its own: the next call goes on behind it.
  virtual bool next(Element& element) = 0;

  std::int64_t skip(std::int64_t count) override;

  /// Where element `number` of this iteration (of a batch, its row `row`) comes from, for messages: "record 3 at byte
  /// 57 of a.tfrecord". Empty where that is not known, as behind a shuffle. May be called at the same times as
  /// `locate`.
  virtual std::string origin(std::int64_t number, std::int64_t row) const;

  /// This iterator if elements can be decided now and computed later, else null.
  virtual DeferredIterator* deferred() { return nullptr; }
};

using IteratorPtr = std::unique_ptr<ElementIterator>;

/// More places than any stream has.
inline constexpr std::int64_t kEndless = std::int64_t{1} << 60;

/// How many places of the input make up `count` places of `size` each, for skipping: no more than kEndless.
inline std::int64_t skipped_input(std::int64_t count, std::int64_t size) {
  return count > kEndless / size ? kEndless : count * size;
}

/// Whether an error says that the stream as a whole must not be used, as when a worker has no share of it, and not only
/// that one element failed. It is reported even where the element would be left out.
LOCKSTEP_EXPORT bool concerns_whole_stream(const std::exception_ptr& error);
/// For errors of elements that are left out: throws those that concern the whole stream. There may be no error.
LOCKSTEP_EXPORT void rethrow_if_fatal(const std::exception_ptr& error);

/// What stands at a place of a stream: an element, or the error that took its place.
struct Place {
  Element element = {};
  std::exception_ptr error = nullptr;

  /// Puts there what `make(element)` writes, or what it throws.
  template <class Make>
  void set(Make&& make) {
    error = nullptr;
    try {
      make(element);
    } catch (...) {
      error = std::current_exception();
    }
  }
  /// Reads the next place of `input`; false at the end.
  bool read(ElementIterator& input) {
    bool is_there = true;  // also if it fails
    set([&](Element& next) { is_there = input.next(next); });
    return is_there;
  }
  /// Swaps the element out, or throws what took its place.
  void give(Element& to) {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
    swap(to, element);
  }
  friend void swap(Place& a, Place& b) noexcept {
    swap(a.element, b.element);
    std::swap(a.error, b.error);
  }
};

/// Passes over `count` places that lie within parts, such as the rows of batches, and says how many there were. `open`
/// makes sure that there is a part, and is false at the end; one that fails has one place. `pass(left)` passes over up to
/// so many places of it.
template <class Open, class Pass>
std::int64_t skip_within_parts(std::int64_t count, Open open, Pass pass) {
  std::int64_t skipped = 0;
  while (skipped < count) {
    try {
      if (!open()) break;
    } catch (...) {
      rethrow_if_fatal(std::current_exception());
      ++skipped;
      continue;
    }
    skipped += pass(count - skipped);
  }
  return skipped;
}

/// To be called while an exception of a user's function is handled: throws it again with the stage's name added, where
/// its type allows that.
[[noreturn]] LOCKSTEP_EXPORT void rethrow_with_stage(const std::string& stage);

/// Runs a user's function; its exceptions get the name of the stage.
template <class F>
decltype(auto) call_for_stage(const std::string& stage, F&& f) {
  try {
    return f();
  } catch (...) {
    rethrow_with_stage(stage);
  }
}

}  // namespace lockstep::data
