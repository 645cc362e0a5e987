#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
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
/// thread that made it, so that its memory serves the next row.
class RowWriter {
 public:
  /// `capacity`: rows at most. `where` names the stage in errors.
  RowWriter(BufferPool& pool, std::int64_t capacity, const std::string& where)
      : pool_(pool), capacity_(capacity), where_(where) {}

  /// False if the row does not have the form of the first one; an error if such rows cannot be batched at all.
  bool try_add(Element& row);
  /// The same, but a row that does not fit is an error.
  void add(Element& row);
  std::int64_t size() const { return count_; }
  /// Of the rows added; there must be one.
  const RowForm& form() const { return *form_; }
  /// The batch of all rows added; the writer is then empty.
  Element finish();

 private:
  void start(const Element& first);

  BufferPool& pool_;
  std::int64_t capacity_;
  const std::string& where_;
  std::int64_t count_ = 0;
  std::optional<RowForm> form_;
  bool loose_ = false;         // rows of a kind that is stacked at the end
  std::vector<Element> rows_;  // if loose
  Element batch_;              // else
  std::vector<std::size_t> row_bytes_;
};

}  // namespace lockstep::data
