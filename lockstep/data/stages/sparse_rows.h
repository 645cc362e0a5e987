#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "lockstep/values/const_data.h"

namespace lockstep::data {

/// The rows of a sparse tensor, indexed once. A row is a sparse tensor (COO) with one dimension less; it is dense if
/// the first dimension is the only sparse one, and so are batches of such rows.
class SparseRows {
 public:
  explicit SparseRows(const at::Tensor& tensor) {
    const at::Tensor whole = (tensor.layout() == at::kSparse ? tensor : tensor.to_sparse()).detach().coalesce();
    sizes_ = whole.sizes().vec();
    indices_ = whole.indices();
    values_ = whole.values();
    offsets_.assign(static_cast<std::size_t>(sizes_.front()) + 1, 0);
    const at::Tensor rows = indices_.select(0, 0).cpu().contiguous();
    for (const std::int64_t row : std::span(const_data<std::int64_t>(rows), static_cast<std::size_t>(rows.numel())))
      ++offsets_[static_cast<std::size_t>(row) + 1];
    std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  }

  /// Whether rows can be taken from tensors of this layout.
  static bool can_read(at::Layout layout) {
    return layout == at::kSparse || layout == at::kSparseCsr || layout == at::kSparseCsc;
  }

  bool has_dense_rows() const { return indices_.size(0) == 1; }

  at::Tensor row(std::int64_t index) const {
    const std::int64_t begin = offsets_[static_cast<std::size_t>(index)];
    const std::int64_t count = offsets_[static_cast<std::size_t>(index) + 1] - begin;
    const at::IntArrayRef sizes = at::IntArrayRef(sizes_).slice(1);
    if (!has_dense_rows())
      return sparse_tensor(indices_.narrow(1, begin, count).narrow(0, 1, indices_.size(0) - 1).clone(),
                           values_.narrow(0, begin, count).clone(), sizes);
    return count == 0 ? at::zeros(sizes, values_.options()) : values_.select(0, begin).clone();
  }

  at::Tensor gather(std::span<const std::int64_t> rows) const {
    std::vector<std::int64_t> chosen;  // values, by number
    std::vector<std::int64_t> places;  // the batch row of each value
    for (std::size_t place = 0; place < rows.size(); ++place) {
      const auto row = static_cast<std::size_t>(rows[place]);
      for (std::int64_t value = offsets_[row]; value < offsets_[row + 1]; ++value) {
        chosen.push_back(value);
        places.push_back(static_cast<std::int64_t>(place));
      }
    }
    const at::Tensor from = numbers(chosen, values_.device());
    const at::Tensor indices = indices_.index_select(1, from);
    indices.select(0, 0).copy_(numbers(places, values_.device()));
    std::vector<std::int64_t> sizes = sizes_;
    sizes.front() = std::ssize(rows);
    const at::Tensor batch = sparse_tensor(indices, values_.index_select(0, from), sizes);
    return has_dense_rows() ? batch.to_dense() : batch;
  }

 private:
  static at::Tensor sparse_tensor(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes) {
    return at::sparse_coo_tensor(indices, values, sizes, values.options().layout(at::kSparse), /*is_coalesced=*/true);
  }

  static at::Tensor numbers(std::vector<std::int64_t>& all, const at::Device& device) {
    return at::from_blob(all.data(), {std::ssize(all)}, at::kLong).to(device);
  }

  std::vector<std::int64_t> sizes_;
  at::Tensor indices_;  // sorted by rows
  at::Tensor values_;
  std::vector<std::int64_t> offsets_;  // where the values of a row begin, plus one for the end
};

}  // namespace lockstep::data
