#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/stage.h"

// The rows of a dataset one after the other, whatever batches they come in.
namespace lockstep::data {

/// Hands out rows in pieces of any size. Rows that fail keep their places: a piece with one of them is its error, and
/// the next piece begins where it always would. Used by one thread at a time.
class RowStream {
 public:
  virtual ~RowStream();

  /// The next `count` rows as one batch, or the error of the first that fails; says how many there were, fewer only at
  /// the end. With 0 rows `batch` is an empty batch, without components if it is not known what rows look like.
  virtual std::int64_t take(std::int64_t count, Place& batch) = 0;
  /// Leaves out up to `count` rows, if possible without computing them; says how many there were. What fails there is
  /// no error, unless it concerns the whole stream.
  virtual std::int64_t skip(std::int64_t count) = 0;
  /// As those of PlaceIterator, of rows.
  virtual void locate(std::int64_t consumed, Position& position) const { position.push(consumed); }
  virtual void restore(Position& position) { skip(position.pop()); }
  /// Looks at the next row, if it takes that to know what rows look like.
  virtual void look() {}
};

/// The rows of a dataset of batches. A batch that fails stands for the rows it would have; where only computing it
/// would tell how many, for as many as batches usually have.
std::unique_ptr<RowStream> rows_of_batches(const Stage& batches, const IterationContext& context);

/// The elements of a dataset as rows: gathered in one call where it is an order of rows of a source, else stacked.
std::unique_ptr<RowStream> rows_of_elements(const Stage& elements, const IterationContext& context);

/// The rows of one component, where the components of a batch may have different numbers of them.
std::int64_t component_rows(const Component& component, const char* where);

}  // namespace lockstep::data
