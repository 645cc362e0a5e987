#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// Comparing and setting buffers of any layout. Sparse ones, such as the adjacency of a graph, are constants: they are
// compared and copied, never averaged, and never made dense, which may take more memory than there is.
namespace lockstep::detail {

/// Dense tensors that say all that is in a tensor: itself, or the indices and values of a sparse one.
std::vector<at::Tensor> dense_parts_of(const at::Tensor& tensor);

/// Whether two tensors have one shape, type and layout and hold the same values.
bool holds_same(const at::Tensor& a, const at::Tensor& b);

/// Gives a buffer a value. One that has it already is left alone: it may be one tensor for all replicas, or a view that
/// cannot be written to.
void set_buffer(at::Tensor buffer, const at::Tensor& value);

/// A buffer of all replicas as one: floating ones averaged, others, and sparse ones, as the first has them. Undefined stays
/// undefined.
at::Tensor buffers_as_one(std::vector<at::Tensor> components);

/// Whether several elements share memory, as those of an expanded tensor do: it cannot be written to.
bool has_shared_elements(const at::Tensor& tensor);

/// Gives a value to a parameter or buffer of all replicas. Those that share memory get it once, and all notice the change.
/// One that cannot be written to is left alone: it must have the value.
void write_to_all(const std::vector<at::Tensor>& components, const at::Tensor& value);

}  // namespace lockstep::detail
