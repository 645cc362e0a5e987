#include "lockstep/data/input_context.h"

#include <ostream>

#include "lockstep/data/errors.h"

namespace lockstep {

std::int64_t InputContext::get_per_replica_batch_size(std::int64_t global_batch_size) const {
  if (num_replicas_in_sync < 1) {
    data::refuse_option("get_per_replica_batch_size",
                        str("num_replicas_in_sync must be >= 1, got ", num_replicas_in_sync),
                        "use the InputContext that distribute_from_function passes to your function");
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
