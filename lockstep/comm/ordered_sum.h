#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/export.h"
#include "lockstep/comm/dtype.h"

namespace lockstep {

/// Throws InvalidArgument if `ordered_sum` with these arguments would; after it, `ordered_sum` does not throw. For
/// callers that must find mistakes before the replicas meet.
LOCKSTEP_EXPORT void check_ordered_sum(Dtype dtype, int count, int output_count, std::int64_t divisor = 1);

/// Adds `count` arrays element by element in the one order of summation (reduction_tree.h), rounding to `dtype` after
/// each addition, divides by `divisor` and writes the result to each of the outputs:
///
///     const void* inputs[] = {a, b, c};
///     void* outputs[] = {a};
///     ordered_sum(Dtype::Float32, inputs, 3, outputs, 1, n);  // a = (a + b) + c
///
/// An element's result depends only on the inputs' elements at its place: a range may be cut anywhere and the parts
/// reduced by different threads. Integers wrap around. An output may be one of the inputs; arrays must not overlap in
/// any other way, and each is aligned to its element. The mean of integers is not an integer, so a divisor other than 1
/// requires a floating dtype; bool has no sum. Allocates nothing; runs at the speed of memory.
LOCKSTEP_EXPORT void ordered_sum(Dtype dtype, const void* const* inputs, int count, void* const* outputs,
                                 int output_count, std::size_t elements, std::int64_t divisor = 1);

}  // namespace lockstep
