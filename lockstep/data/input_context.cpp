#include "lockstep/data/input_context.h"

#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

std::int64_t InputContext::get_per_replica_batch_size(std::int64_t global_batch_size) const {
  if (num_replicas_in_sync < 1) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("num_replicas_in_sync must be >= 1, got ", num_replicas_in_sync),
                           .where = "get_per_replica_batch_size",
                           .help = "use the InputContext that distribute_from_function passes to your function"});
  }
  if (global_batch_size % num_replicas_in_sync != 0) {
    throw InvalidArgument(errors::kShape, {.what = str("global_batch_size ", global_batch_size, " is not divisible by ",
                                                       counted(num_replicas_in_sync, "replica")),
                                           .where = "get_per_replica_batch_size",
                                           .help = str("call it with a multiple of ", num_replicas_in_sync)});
  }
  return global_batch_size / num_replicas_in_sync;
}

std::string to_string(const InputContext& context) {
  return str("InputContext(input pipeline id ", context.input_pipeline_id, ", total: ", context.num_input_pipelines,
             ")");
}

std::ostream& operator<<(std::ostream& out, const InputContext& context) { return out << to_string(context); }

}  // namespace lockstep
