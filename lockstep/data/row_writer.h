#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/element_spec.h"

namespace lockstep::data {

/// What rows must have in common to become one batch: structure, types, shapes, and where their tensors lie.
class RowForm {
 public:
  /// An error if such rows cannot be batched at all.
  RowForm(const Element& row, const std::string& where);

  bool fits(const Element& row) const;
  bool operator==(const RowForm&) const = default;
  /// A batch without rows, as such rows would make up.
  Element empty_batch() const;

  /// What to throw when row `number` of a batch has the form `other`, and its first row this one.
  InvalidArgument misfit(const RowForm& other, std::int64_t number, const std::string& where) const;

 private:
  struct Memory {
    at::Device device = at::kCPU;
    at::Layout layout = at::kStrided;
    bool operator==(const Memory&) const = default;
  };
  std::string describe() const;

  ElementSpec spec_;
  std::vector<Memory> memory_;  // one for each component
};

/// Puts rows into a batch one by one, each right after it was computed: while it is still in the cache, and by the
/// thread that made it, so that its memory serves the next row. A batch may come in pieces, each with memory of its own.
class RowWriter {
 public:
  /// `where` names the stage in errors.
  RowWriter(BufferPool& pool, std::string where) : pool_(pool), where_(std::move(where)) {}

  /// Drops what is left of the last batch. The first row of the next one may have another form.
  void start_batch() { rows_of_batch_ = count_ = 0; }
  /// Of the next piece: rows at most.
  void set_capacity(std::int64_t rows) { capacity_ = rows; }
  /// False if the row does not have the form of the first one; an error if such rows cannot be batched at all.
  bool add(Element& row);
  /// For a row that `add` does not take.
  [[noreturn]] void throw_misfit(const Element& row) const;
  /// Of the piece.
  std::int64_t size() const { return count_; }
  /// Of the last row that was added or looked at; none before the first.
  const std::optional<RowForm>& form() const { return form_; }
  /// Takes over the form of a row without adding it.
  void look_at(const Element& row);
  /// The rows added since the last piece, of which there must be one.
  Element finish();

 private:
  void prepare(const Element& first);

  BufferPool& pool_;
  const std::string where_;
  std::int64_t capacity_ = 0;
  std::int64_t rows_of_batch_ = 0;  // of all its pieces
  std::int64_t count_ = 0;
  std::optional<RowForm> form_;  // kept from batch to batch: most often it is the same
  bool loose_ = false;           // rows of a kind that is stacked at the end
  std::vector<Element> rows_;    // if loose
  Element batch_;                // else
  std::vector<std::size_t> row_bytes_;
};

}  // namespace lockstep::data
