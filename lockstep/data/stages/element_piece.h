#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/place.h"

namespace lockstep::data {

/// What the threads of a pipeline hand over: a few elements in order, or the errors that stand in their places.
struct ElementPiece {
  std::vector<Place> items;  // the first `count` are in use; the others keep their memory
  std::size_t count = 0;
  std::size_t taken = 0;
  std::vector<std::int64_t> indices;  // of rows that are gathered by the worker
  std::int64_t first_row = 0;
  BufferPool pool{4};

  Place& add() {
    if (count == items.size()) items.emplace_back();
    Place& item = items[count++];
    item.error = nullptr;
    return item;
  }
  /// Adds up to `wanted` places of `input`; none if it is at its end.
  void fill(ElementIterator& input, std::int64_t wanted) {
    for (std::int64_t i = 0; i < wanted; ++i) {
      if (add().read(input)) continue;
      --count;
      break;
    }
  }
  void clear() { count = taken = 0; }
  bool has_next() const { return taken < count; }

  /// Moves the next element out, or throws what took its place.
  void next(Element& element) { items[taken++].give(element); }
};

/// How many elements make a piece: as many as take some time, so that handing over costs little and slow elements are
/// still shared out one by one.
class PieceSize {
 public:
  /// About 100 microseconds, 64 elements at most.
  PieceSize() : PieceSize(64, 100'000) {}
  /// Whole batches if they take 2 milliseconds at most.
  explicit PieceSize(std::int64_t batch) : PieceSize(batch, 2'000'000) {}

  void measured(std::int64_t elements, std::chrono::steady_clock::duration took) {
    if (elements == 0) return;
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(took).count() / elements;
    const std::int64_t fitting = nanoseconds > 0 ? target_ns_ / nanoseconds : most_;
    // Grows by doubling, so that one lucky measurement of a slow function does no harm.
    size_.store(std::clamp<std::int64_t>(fitting, 1, std::min<std::int64_t>(most_, 2 * size_.load())));
  }
  std::int64_t get() const { return size_.load(); }

 private:
  PieceSize(std::int64_t most, std::int64_t target_ns) : most_(most), target_ns_(target_ns) {}

  std::int64_t most_;
  std::int64_t target_ns_;
  std::atomic<std::int64_t> size_{1};
};

}  // namespace lockstep::data
