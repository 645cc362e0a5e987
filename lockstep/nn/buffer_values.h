#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// Comparing and setting buffers of any layout. Sparse ones, such as the adjacency of a graph, are constants: they are
// compared and copied, never averaged, and never made dense, which could exhaust memory.
namespace lockstep::detail {

/// Dense tensors with all of a tensor's contents: itself, or a sparse one's indices and values.
std::vector<at::Tensor> dense_parts_of(const at::Tensor& tensor);

/// Whether two tensors have the same shape, type, layout and values.
bool holds_same(const at::Tensor& a, const at::Tensor& b);

/// Sets a buffer's value. Does not write if it has the value already: it may be shared by all replicas, or a read-only
/// view.
void set_buffer(at::Tensor buffer, const at::Tensor& value);

/// Merges a buffer of all replicas into one: floating ones are averaged, others, and sparse ones, are the first's.
/// Undefined stays undefined.
at::Tensor buffers_as_one(std::vector<at::Tensor> components);

/// Whether several elements share memory, as in an expanded tensor, which cannot be written to.
bool has_shared_elements(const at::Tensor& tensor);

/// Sets a parameter or buffer of all replicas. Shared memory is written once, and every replica's version counter
/// changes. A tensor that cannot be written to is skipped: it must have the value already.
void write_to_all(const std::vector<at::Tensor>& components, const at::Tensor& value);

}  // namespace lockstep::detail
