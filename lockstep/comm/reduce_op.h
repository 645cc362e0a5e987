#pragma once

#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// How the components of a value become one.
enum class ReduceOp {
  Sum,
  Mean,  ///< the sum divided by the number of components
};

LOCKSTEP_EXPORT std::string_view to_string(ReduceOp op);  ///< "SUM", "MEAN"

/// Reads "sum" or "mean" in capitals or not.
LOCKSTEP_EXPORT ReduceOp parse_reduce_op(std::string_view name);

}  // namespace lockstep
