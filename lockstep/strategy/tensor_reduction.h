#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <vector>

#include "lockstep/comm/dtype.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/axis.h"
#include "lockstep/values/indexed_slices.h"

// Reductions of tensors that are all at hand, on the calling thread. Every sum has the one order of comm/ordered_sum.h.
namespace lockstep {

/// The engines' name for an element type; none for those they do not add (bool, complex).
std::optional<Dtype> engine_dtype(at::ScalarType type);

/// The sum of arrays of equal length. Any range of it can be computed by itself: threads take ranges, and the engine between
/// workers takes the whole.
struct ArraySum {
  Dtype dtype;
  c10::SmallVector<const void*, 16> inputs = {};  ///< of each replica
  c10::SmallVector<void*, 16> outputs = {};       ///< each gets the sum
  std::int64_t divisor = 1;

  /// Elements [begin, end), in the one order of summation.
  void add(std::size_t begin, std::size_t end) const;
};

/// The type of a MEAN: floating types stay; int32 and int64 become float64, smaller integers float32.
at::ScalarType mean_type(at::ScalarType type);

/// Throws InvalidArgument for a number that was cast to a ReduceOp and names none.
void require_op(ReduceOp op, const char* operation);

/// Throws InvalidArgument unless all are there and have the first one's shape and dtype, and are on the same device or
/// where Lockstep brings them together: on CPUs and GPUs.
void require_equal_form(const std::vector<at::Tensor>& components, const char* operation);

/// Throws InvalidArgument for a type that has no sum.
void require_summable(const at::Tensor& value, const char* operation);

/// Whether there are CPUs or GPUs with some of them but not with the first.
bool are_on_several_devices(const std::vector<at::Tensor>& components);
/// Those that are on others, copied to `here`, and the rest as they are.
std::vector<at::Tensor> on_one_device(const std::vector<at::Tensor>& components, at::Device here);

/// The sum or mean of tensors of equal form, on the device of the first.
at::Tensor ordered_reduce(ReduceOp op, const std::vector<at::Tensor>& components);

/// The finishing division of a MEAN by `count` values.
at::Tensor divide_sum(const at::Tensor& sum, std::int64_t count);

/// All rows, in order; nothing is added up. MEAN divides the values by the number of components.
IndexedSlices concatenate_slices(ReduceOp op, const std::vector<IndexedSlices>& components);

/// The components, concatenated; negative axes count from the end.
at::Tensor concatenate(const std::vector<at::Tensor>& components, std::int64_t axis);

/// Sums along the axes, keeping the element type. `elements` is increased by the number of elements that went into each
/// element of the result.
at::Tensor sum_along(const at::Tensor& value, const Axis& axis, std::int64_t& elements);

}  // namespace lockstep
