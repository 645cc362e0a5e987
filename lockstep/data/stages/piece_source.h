#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/stage.h"
#include "lockstep/data/stages/element_piece.h"

namespace lockstep::data {

/// The rows of a piece, gathered in one call. If that fails they are read one by one, so that those fail that cannot be
/// read, and not all that happen to be in the same piece.
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

/// Where the threads of a map take pieces of work from: elements of a stage, or the numbers of rows that a worker
/// gathers itself. Counts places, so that every row has a number whoever computes it.
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
      piece.indices.resize(static_cast<std::size_t>(wanted));
      got = indices_->next(piece.indices);
      piece.indices.resize(got);
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
