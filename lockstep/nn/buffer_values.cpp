#include "lockstep/nn/buffer_values.h"

#include <ATen/MemoryOverlap.h>

#include <set>

namespace lockstep::detail {

std::vector<at::Tensor> dense_parts_of(const at::Tensor& tensor) {
  switch (tensor.layout()) {
    case at::kStrided: return {tensor};
    case at::kSparse: {
      const at::Tensor ordered = tensor.coalesce();
      return {ordered.indices(), ordered.values()};
    }
    case at::kSparseCsr:
    case at::kSparseBsr: return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
    case at::kSparseCsc:
    case at::kSparseBsc: return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
    default: return {tensor.to_dense()};
  }
}

namespace {

/// LibTorch cannot compare 8-bit floating types.
at::Tensor comparable(const at::Tensor& tensor) {
  const bool is_float8 = tensor.element_size() == 1 && at::isFloatingType(tensor.scalar_type());
  return is_float8 ? tensor.view(at::kByte) : tensor;
}

}  // namespace

bool holds_same(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type() || a.layout() != b.layout()) return false;
  const auto of_a = dense_parts_of(a), of_b = dense_parts_of(b);
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    const bool is_same =
        of_a[i].sizes() == of_b[i].sizes() && comparable(of_a[i]).equal(comparable(of_b[i]).to(of_a[i].device()));
    if (!is_same) return false;
  }
  return true;
}

void set_buffer(at::Tensor buffer, const at::Tensor& value) {
  if (holds_same(buffer, value)) return;
  const bool is_compressed = buffer.layout() != at::kStrided && buffer.layout() != at::kSparse;
  if (is_compressed) buffer.resize_as_sparse_(value);  // copy_ keeps the number of elements
  buffer.copy_(value);
}

bool has_shared_elements(const at::Tensor& tensor) { return at::has_internal_overlap(tensor) == at::MemOverlap::Yes; }

void write_to_all(const std::vector<at::Tensor>& components, const at::Tensor& value) {
  std::set<const void*> written;
  for (at::Tensor component : components) {
    if (has_shared_elements(component)) continue;
    if (written.insert(component.const_data_ptr()).second || component.numel() == 0) {
      component.copy_(value);
    } else if (!component.is_inference()) {
      component.unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace lockstep::detail
