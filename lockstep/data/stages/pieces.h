#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/data/iterators.h"
#include "lockstep/data/stage_counters.h"
#include "lockstep/data/workers.h"

// Work items passed between the threads of a pipeline.
namespace lockstep::data {

/// A few elements in order, or the errors in their places.
struct ElementPiece {
  std::vector<Place> items;  // the first `count` are in use; the others keep their memory
  std::size_t count = 0;
  std::size_t taken = 0;
  std::vector<std::int64_t> indices;  // rows for the worker to gather
  std::int64_t first_row = 0;
  BufferPool pool{4};

  Place& add() {
    if (count == items.size()) items.emplace_back();
    Place& item = items[count++];
    item.error = nullptr;
    return item;
  }
  /// Appends up to `wanted` places of `input`; none if it is at its end.
  void fill(ElementIterator& input, std::int64_t wanted) {
    for (std::int64_t i = 0; i < wanted; ++i) {
      if (add().read(input)) continue;
      --count;
      break;
    }
  }
  void clear() { count = taken = 0; }
  /// Moves the next element out, or throws the error in its place. Once all are taken, gets the next piece from
  /// `workers`; false at their end. `counters` may be null.
  bool next_of(LazyWorkers<ElementPiece>& workers, StageCounters* counters, Element& element) {
    if (taken == count) {
      if (counters) counters->buffer(workers.ready(), workers.limit());
      if (!workers.take(*this)) return false;
    }
    items[taken++].give(element);
    return true;
  }
};

/// How many elements make a piece: enough to make handing over cheap, few enough that slow elements are still
/// distributed one by one.
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

/// The rows of a piece, gathered in one call. If that fails they are read one by one, so that only the unreadable ones
/// fail and not the whole piece.
class GatheredPiece {
 public:
  GatheredPiece(const RowSourcePtr& rows, ElementPiece& piece) : rows_(rows), piece_(piece) {
    if (!rows_) return;
    try {
      rows_->gather(piece_.indices, piece_.pool, block_);
    } catch (...) {
      one_by_one_ = true;
    }
  }

  void give(std::int64_t i, Element& element) const {
    if (one_by_one_)
      element = rows_->row(piece_.indices[static_cast<std::size_t>(i)]);
    else
      row(block_, i, element);
  }

 private:
  const RowSourcePtr& rows_;
  ElementPiece& piece_;
  Element block_;
  bool one_by_one_ = false;
};

/// Source of a map's work pieces: elements of a stage, or row numbers that a worker gathers itself. Counts places, so
/// every row has the same number whichever thread computes it.
class PieceSource {
 public:
  PieceSource(const Stage& stage, const IterationContext& context) : rows_(stage.row_source()) {
    if (rows_)
      indices_ = stage.make_index_iterator(context);
    else
      elements_ = stage.iterate(context);
  }

  /// Null if pieces hold elements already.
  const RowSourcePtr& rows() const { return rows_; }
  /// Places handed out or skipped.
  std::int64_t passed() const { return passed_; }

  /// Fills `piece` with up to `wanted` places; false at the end.
  bool fill(ElementPiece& piece, std::int64_t wanted) {
    piece.clear();
    piece.first_row = passed_;
    std::size_t got = 0;
    if (rows_) {
      read_numbers(*indices_, wanted, piece.indices);
      got = piece.indices.size();
    } else {
      piece.fill(*elements_, wanted);
      got = piece.count;
    }
    passed_ += static_cast<std::int64_t>(got);
    return got > 0;
  }

  std::int64_t skip(std::int64_t count) {
    const std::int64_t skipped = places().skip(count);
    passed_ += skipped;
    return skipped;
  }
  void locate(std::int64_t consumed, Position& position) const {
    position.push(consumed);
    places().locate(consumed, position);
  }
  void restore(Position& position) {
    passed_ = position.pop();
    places().restore(position);
  }

 private:
  PlaceIterator& places() const {
    if (rows_) return *indices_;
    return *elements_;
  }

  RowSourcePtr rows_;
  std::unique_ptr<IndexIterator> indices_;
  IteratorPtr elements_;
  std::int64_t passed_ = 0;
};

}  // namespace lockstep::data
