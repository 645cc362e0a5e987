#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

/// The rows of a sparse tensor, found without going through all of its values each time. A row is a sparse tensor (COO)
/// with one dimension less; it is dense if the first dimension is the only sparse one, and so are batches of such rows.
class SparseRows {
 public:
  explicit SparseRows(const at::Tensor& tensor);

  /// Whether rows can be taken from tensors of this layout.
  static bool can_read(at::Layout layout) {
    return layout == at::kSparse || layout == at::kSparseCsr || layout == at::kSparseCsc;
  }

  bool has_dense_rows() const { return indices_.size(0) == 1; }
  at::Tensor row(std::int64_t index) const;
  at::Tensor gather(std::span<const std::int64_t> rows) const;

 private:
  std::vector<std::int64_t> sizes_;
  at::Tensor indices_;  // sorted by rows
  at::Tensor values_;
  std::vector<std::int64_t> offsets_;  // where the values of a row begin; one more for the end
};

}  // namespace lockstep::data
