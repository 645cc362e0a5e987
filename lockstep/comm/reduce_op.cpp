#include "lockstep/comm/reduce_op.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum: return "SUM";
    case ReduceOp::Mean: return "MEAN";
  }
  return "UNKNOWN";
}

ReduceOp parse_reduce_op(std::string_view name) {
  for (const auto op : {ReduceOp::Sum, ReduceOp::Mean}) {
    if (equals_ignoring_case(name, to_string(op))) return op;
  }
  throw InvalidArgument(errors::kBadOption, {.what = str("'", name, "' is not a valid ReduceOp"),
                                             .help = "use ReduceOp::Sum or ReduceOp::Mean (\"sum\" or \"mean\")"});
}

}  // namespace lockstep
