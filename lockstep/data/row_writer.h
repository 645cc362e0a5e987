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

/// What the rows of a batch must have in common: structure, dtypes, shapes, and where their tensors are stored.
class RowForm {
 public:
  /// An error if such rows cannot be batched at all.
  RowForm(const Element& row, const std::string& where);

  bool fits(const Element& row) const;
  bool operator==(const RowForm&) const = default;
  /// A batch without rows, as such rows would form.
  Element empty_batch() const;

  /// The error for row `number` of a batch with form `other` if its first row has this form.
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

/// Writes rows into a batch one by one, each right after it was computed: while it is in the cache, and on the thread
/// that made it, so that its memory serves the next row. A batch may consist of pieces with separate memory.
class RowWriter {
 public:
  /// `where` names the stage in errors.
  RowWriter(BufferPool& pool, std::string where) : pool_(pool), where_(std::move(where)) {}

  /// Drops the rest of the last batch. The first row of the next one may have another form.
  void start_batch() { rows_of_batch_ = count_ = 0; }
  /// Maximum number of rows of the next piece.
  void set_capacity(std::int64_t rows) { capacity_ = rows; }
  /// False if the form differs from the first row's; throws if such rows cannot be batched at all.
  bool add(Element& row);
  /// For a row that `add` rejected.
  [[noreturn]] void throw_misfit(const Element& row) const;
  /// Rows in the current piece.
  std::int64_t size() const { return count_; }
  /// Form of the last row added or inspected; none before the first.
  const std::optional<RowForm>& form() const { return form_; }
  /// Adopts the form of a row without adding it.
  void look_at(const Element& row);
  /// The rows added since the last piece; there must be at least one.
  Element finish();

 private:
  void prepare(const Element& first);

  BufferPool& pool_;
  const std::string where_;
  std::int64_t capacity_ = 0;
  std::int64_t rows_of_batch_ = 0;  // over all its pieces
  std::int64_t count_ = 0;
  std::optional<RowForm> form_;  // kept across batches: usually it does not change
  bool loose_ = false;           // rows of a kind that is stacked at the end
  std::vector<Element> rows_;    // if loose
  Element batch_;                // otherwise
  std::vector<std::size_t> row_bytes_;
};

}  // namespace lockstep::data
