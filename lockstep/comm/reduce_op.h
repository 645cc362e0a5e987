#pragma once

#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// How the components of a value are combined.
enum class ReduceOp {
  Sum,
  Mean,  ///< the sum divided by the number of components
};

LOCKSTEP_EXPORT std::string_view to_string(ReduceOp op);  ///< "SUM", "MEAN"

/// Parses "sum" or "mean" in any case.
LOCKSTEP_EXPORT ReduceOp parse_reduce_op(std::string_view name);

}  // namespace lockstep
