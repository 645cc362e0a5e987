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

/// The parameters of an iteration over a pipeline. They determine all random choices, so that two iterations with equal
/// contexts yield the same elements on any machine.
struct LOCKSTEP_EXPORT IterationContext {
  /// Seed for stages without one. `distribute` passes the strategy's; plain iteration uses the seed of LibTorch's
  /// default generator.
  std::uint64_t job_seed = 0;
  /// Counts passes over the data, including those of `repeat`. Shuffles that reshuffle depend on it.
  std::uint64_t epoch = 0;
  /// Identifies one of several random stages; see `below`.
  std::uint64_t path = 0;
  /// Measures stages if the caller wants a report; null costs nothing.
  std::shared_ptr<StageMeter> meter = nullptr;
  /// Counters of the stage being started; set by `Stage::iterate`.
  std::shared_ptr<StageCounters> counters = nullptr;
  /// Set within a dataset that the function of a `flat_map` or `interleave` made: records what keeps positions from
  /// being exact, since that is not known beforehand.
  std::shared_ptr<MetObstacle> met_obstacle = nullptr;
  /// The pass is resumed: what was counted before is not counted again.
  bool is_resumed = false;

  /// Context for input `branch` of a stage with several inputs, or for a stage that is itself random. Stages with one
  /// input that draw no numbers pass on their own context, so inserting a `shard` or a `prefetch` changes no shuffle.
  IterationContext below(std::uint64_t branch) const;
  /// Context for pass `index` of a `repeat`, element `index` of a `flat_map`. Pass 0 is the same as no `repeat` at all.
  IterationContext pass(std::uint64_t index) const;
  /// The seed of an unseeded stage at this place.
  std::uint64_t stage_seed() const;
  /// The same for all iterators that yield the elements of this pass.
  std::uint64_t pass_key() const;
  /// Context for extra reads: the same elements, not measured.
  IterationContext unmeasured() const;
};

/// The seed of plain iterations: LibTorch's default generator's.
LOCKSTEP_EXPORT std::uint64_t default_job_seed();

/// One pass over a stage's stream, a sequence of places: at each there is an element, or the error that replaced it. A
/// failed element keeps its place, so that everything that counts (rows of a batch, `take`, `shard`, random numbers,
/// positions) counts the same whether rows are computed, skipped, or computed by another worker. For one thread at a
/// time; it may be destroyed at any point.
class LOCKSTEP_EXPORT PlaceIterator {
 public:
  PlaceIterator() = default;
  PlaceIterator(const PlaceIterator&) = delete;
  PlaceIterator& operator=(const PlaceIterator&) = delete;
  virtual ~PlaceIterator();

  /// Skips up to `count` places and returns how many there were; errors there are ignored. One-to-one stages pass this
  /// on to their input, so that skipped rows are not computed; sources that can seek jump.
  virtual std::int64_t skip(std::int64_t count) = 0;

  /// Describes the place after the first `consumed` ones of this iteration, which may precede what was read if a stage
  /// above reads ahead. May be called while another thread reads (prefetch), so it must lock or use only what does not
  /// change. Most stages need only the count. The description depends only on the stage, not on how it is executed:
  /// another program may execute it differently.
  virtual void locate(std::int64_t consumed, Position& position) const;
  /// Moves a new iterator of the same stage and context to a place written by `locate`.
  virtual void restore(Position& position);
};

class LOCKSTEP_EXPORT ElementIterator : public PlaceIterator {
 public:
  /// Writes the next element; false at the end, and from then on. `element` may hold anything before. An exception
  /// takes up a place: the next call continues after it.
  virtual bool next(Element& element) = 0;

  std::int64_t skip(std::int64_t count) override;

  /// The origin of element `number` of this iteration (in a batch, of row `row`), for messages: "record 3 at byte 57 of
  /// a.tfrecord". Empty if unknown, as after a shuffle. May be called at the same times as `locate`.
  virtual std::string origin(std::int64_t number, std::int64_t row) const;

  /// This iterator if it can decide elements now and compute them later, otherwise null.
  virtual DeferredIterator* deferred() { return nullptr; }
};

using IteratorPtr = std::unique_ptr<ElementIterator>;

/// More places than any stream has.
inline constexpr std::int64_t kEndless = std::int64_t{1} << 60;

/// How many input places make up `count` places of `size` each, for skipping: at most kEndless.
inline std::int64_t skipped_input(std::int64_t count, std::int64_t size) {
  return count > kEndless / size ? kEndless : count * size;
}

/// Whether an error means that the stream as a whole must not be used, as when a worker has no share of it, rather than
/// that one element failed. It is reported even if the element would be dropped.
LOCKSTEP_EXPORT bool concerns_whole_stream(const std::exception_ptr& error);
/// For errors of dropped elements: rethrows those that concern the whole stream. `error` may be null.
LOCKSTEP_EXPORT void rethrow_if_fatal(const std::exception_ptr& error);

/// One place of a stream: an element, or the error that replaced it.
struct Place {
  Element element = {};
  std::exception_ptr error = nullptr;

  /// Stores what `make(element)` writes, or what it throws.
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
    bool is_there = true;  // true even if the element fails
    set([&](Element& next) { is_there = input.next(next); });
    return is_there;
  }
  /// Swaps the element out, or throws the error.
  void give(Element& to) {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
    swap(to, element);
  }
  friend void swap(Place& a, Place& b) noexcept {
    swap(a.element, b.element);
    std::swap(a.error, b.error);
  }
};

/// Skips `count` places that lie within parts, such as the rows of batches, and returns how many there were. `open`
/// makes sure that there is a part and returns false at the end; one that fails has one place. `pass(left)` skips up to
/// `left` places of it.
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

/// Call while handling an exception of a user's function: rethrows it with the stage's name added, if its type allows
/// that.
[[noreturn]] LOCKSTEP_EXPORT void rethrow_with_stage(const std::string& stage);

/// Runs a user's function; adds the stage's name to its exceptions.
template <class F>
decltype(auto) call_for_stage(const std::string& stage, F&& f) {
  try {
    return f();
  } catch (...) {
    rethrow_with_stage(stage);
  }
}

}  // namespace lockstep::data
