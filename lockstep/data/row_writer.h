#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/element.h"
#include "lockstep/data/row_form.h"

namespace lockstep::data {

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
