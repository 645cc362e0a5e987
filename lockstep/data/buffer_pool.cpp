#include "lockstep/data/buffer_pool.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

namespace lockstep::data {
namespace {

// malloc reuses small blocks well by itself: keeping them here gains nothing.
constexpr std::size_t kWorthKeeping = 32 * 1024;

at::Tensor tensor_on(const c10::Storage& storage, at::IntArrayRef shape, at::ScalarType dtype) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

}  // namespace

at::Tensor BufferPool::take(at::IntArrayRef shape, at::ScalarType dtype) {
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
  if (bytes < kWorthKeeping) return at::empty(shape, at::TensorOptions(dtype));
  for (const c10::Storage& storage : storages_) {
    // The pool has the only reference, and no other can appear: it would have to be copied from an existing one.
    if (storage.use_count() == 1 && storage.nbytes() >= bytes && storage.nbytes() <= 2 * bytes)
      return tensor_on(storage, shape, dtype);
  }
  at::Tensor tensor = at::empty(shape, at::TensorOptions(dtype));
  if (storages_.size() < limit_) {
    storages_.push_back(tensor.storage());
  } else {
    storages_[oldest_] = tensor.storage();
    oldest_ = (oldest_ + 1) % limit_;
  }
  return tensor;
}

}  // namespace lockstep::data
