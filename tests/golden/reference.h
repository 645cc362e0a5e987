#pragma once

#include <vector>

#include "lockstep/comm/reduce_op.h"
#include "tests/golden/case.h"
#include "tests/support/nest.h"

// The results of Lockstep's own rules, computed plainly, for cases in which they differ from TensorFlow's.
namespace lockstep::golden {

/// The sum or mean over components, leaf by leaf, in the one order of summation. A MEAN of integers is floating.
Nest reduced(ReduceOp op, const std::vector<Nest>& components);

/// The same after summing each component along `axes`; a MEAN counts elements, not components.
Nest reduced_along(ReduceOp op, const std::vector<Nest>& components, const std::vector<std::int64_t>& axes);

/// The components, concatenated; a negative axis counts from the end.
Nest gathered(const std::vector<Nest>& components, std::int64_t axis);

/// The `expect` of a case with steps. Supports assign, assign_add, assign_sub, read, plus, convert, set_components and
/// checkpoints.
json expected_of_steps(const Case& given);

}  // namespace lockstep::golden
