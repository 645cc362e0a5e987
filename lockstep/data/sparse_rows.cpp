#include "lockstep/data/sparse_rows.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "lockstep/values/const_data.h"

namespace lockstep::data {
namespace {

at::Tensor sparse_tensor(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes) {
  return at::sparse_coo_tensor(indices, values, sizes, values.options().layout(at::kSparse), /*is_coalesced=*/true);
}

at::Tensor numbers(std::vector<std::int64_t>& all, const at::Device& device) {
  return at::from_blob(all.data(), {std::ssize(all)}, at::kLong).to(device);
}

}  // namespace

SparseRows::SparseRows(const at::Tensor& tensor) {
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

at::Tensor SparseRows::row(std::int64_t index) const {
  const std::int64_t begin = offsets_[static_cast<std::size_t>(index)];
  const std::int64_t count = offsets_[static_cast<std::size_t>(index) + 1] - begin;
  const at::IntArrayRef sizes = at::IntArrayRef(sizes_).slice(1);
  if (!has_dense_rows())
    return sparse_tensor(indices_.narrow(1, begin, count).narrow(0, 1, indices_.size(0) - 1).clone(),
                         values_.narrow(0, begin, count).clone(), sizes);
  return count == 0 ? at::zeros(sizes, values_.options()) : values_.select(0, begin).clone();
}

at::Tensor SparseRows::gather(std::span<const std::int64_t> rows) const {
  std::vector<std::int64_t> chosen;  // values, by number
  std::vector<std::int64_t> places;  // the row of the batch that each goes to
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

}  // namespace lockstep::data
