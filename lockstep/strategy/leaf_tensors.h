#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "lockstep/values/reducible.h"

// The tensors that a leaf of a reduction consists of: itself, or the values and indices of sparse rows.
namespace lockstep {

template <class F>
void for_each_tensor(const ReducibleLeaf& leaf, F&& f) {
  if (const auto* const rows = std::get_if<IndexedSlices>(&leaf)) {
    f(rows->values);
    f(rows->indices);
  } else {
    f(std::get<at::Tensor>(leaf));
  }
}

template <class F>
ReducibleLeaf map_tensors(const ReducibleLeaf& leaf, F&& f) {
  if (const auto* const rows = std::get_if<IndexedSlices>(&leaf))
    return IndexedSlices{f(rows->values), f(rows->indices), rows->dense_shape};
  return f(std::get<at::Tensor>(leaf));
}

/// The device of its values; the CPU for an undefined tensor.
inline at::Device device_of(const ReducibleLeaf& leaf) {
  const auto* const rows = std::get_if<IndexedSlices>(&leaf);
  const at::Tensor& tensor = rows ? rows->values : std::get<at::Tensor>(leaf);
  return tensor.defined() ? tensor.device() : at::Device(at::kCPU);
}

}  // namespace lockstep
