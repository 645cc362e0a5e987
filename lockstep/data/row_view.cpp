#include "lockstep/data/row_view.h"

#include <c10/core/TensorImpl.h>

namespace lockstep::data {
namespace {

at::Tensor view_of_row(const at::Tensor& batch, std::int64_t i) {
  if (!batch.is_cpu() || !batch.is_contiguous()) return batch.select(0, i);
  auto row = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(batch.storage()),
                                                      c10::DispatchKeySet(c10::DispatchKey::CPU), batch.dtype());
  c10::TensorImpl* impl = row.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(batch.sizes().slice(1));
  impl->set_storage_offset(batch.storage_offset() + i * batch.stride(0));
  return row;
}

}  // namespace

void row_view(const Element& batch, std::int64_t i, Element& element) {
  element.skeleton = batch.skeleton;
  element.components.clear();
  for (const Component& component : batch.components) {
    if (const auto* tensor = std::get_if<at::Tensor>(&component))
      element.components.emplace_back(view_of_row(*tensor, i));
    else
      element.components.emplace_back(std::get<Strings>(component)[i]);
  }
}

}  // namespace lockstep::data
