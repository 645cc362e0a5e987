#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace lockstep {

/// Equal shape, element type and bytes; NaN equals itself and -0 differs from 0.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.detach().cpu().contiguous().resolve_conj().resolve_neg();
  const at::Tensor y = b.detach().cpu().contiguous().resolve_conj().resolve_neg();
  return x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// The first tensor whose bits differ; empty if there is none.
inline std::string first_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return "number of tensors";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return "tensor #" + std::to_string(i);
  }
  return {};
}

}  // namespace lockstep
