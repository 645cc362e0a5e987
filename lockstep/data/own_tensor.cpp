#include "lockstep/data/own_tensor.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <utility>
#include <vector>

namespace lockstep::data {
namespace {

/// Whether rows are adjacent blocks of memory, without gap or overlap.
bool has_blocks_of_rows(const at::Tensor& batch) {
  return batch.dim() > 0 && batch.numel() > 0 && batch.is_non_overlapping_and_dense() &&
         (batch.size(0) == 1 || batch.stride(0) == batch.numel() / batch.size(0));
}

/// Whether a tensor is fully described by its memory, sizes and strides.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor.is_quantized() && !tensor._is_zerotensor();
}

/// A part of another storage that keeps it alive. Resizing it allocates new memory.
c10::Storage part_of(const c10::Storage& whole, void* begin, std::size_t bytes) {
  c10::StorageImpl* kept = c10::Storage(whole).unsafeReleaseStorageImpl();
  c10::DataPtr memory(
      begin, kept,
      [](void* storage) { c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(storage)); },
      whole.device());
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            std::move(memory), c10::GetCPUAllocator(),
                                                            /*resizable=*/true));
}

/// `count` rows in memory from row `begin` on, as a tensor of these sizes and strides.
at::Tensor block_of(const at::Tensor& batch, std::int64_t begin, std::int64_t count, at::IntArrayRef sizes,
                    at::IntArrayRef strides) {
  const std::size_t row_bytes = batch.nbytes() / static_cast<std::size_t>(batch.size(0));
  auto* memory = static_cast<char*>(batch.mutable_data_ptr()) + static_cast<std::size_t>(begin) * row_bytes;
  auto block = at::detail::make_tensor<c10::TensorImpl>(
      part_of(batch.storage(), memory, static_cast<std::size_t>(count) * row_bytes),
      c10::DispatchKeySet(c10::DispatchKey::CPU), batch.dtype());
  block.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return block;
}

/// Detaches a view of a batch from its base in autograd's eyes.
at::Tensor without_base(const at::Tensor& batch, const at::Tensor& view) {
  const bool shares = batch.layout() == at::kStrided && !has_blocks_of_rows(batch);
  return shares ? view.detach().clone() : own_tensor(view);
}

}  // namespace

at::Tensor own_tensor(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                          /*allow_tensor_metadata_change=*/true));
}

at::Tensor own_rows(const at::Tensor& batch, std::int64_t begin, std::int64_t count) {
  if (batch.layout() == at::kSparse) return batch.detach().narrow_copy(0, begin, count);
  if (!is_plain(batch) || !has_blocks_of_rows(batch)) return without_base(batch, batch.narrow(0, begin, count));
  std::vector<std::int64_t> sizes = batch.sizes().vec();
  sizes.front() = count;
  return block_of(batch, begin, count, sizes, batch.strides());
}

at::Tensor own_row(const at::Tensor& batch, std::int64_t i) {
  if (!is_plain(batch) || !has_blocks_of_rows(batch)) return without_base(batch, batch.select(0, i));
  return block_of(batch, i, 1, batch.sizes().slice(1), batch.strides().slice(1));
}

}  // namespace lockstep::data
