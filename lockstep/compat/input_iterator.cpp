#include "lockstep/compat/input_iterator.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::compat {

data::DistributedInputPtr dataset_steps(lockstep::Strategy& core, const data::StagePtr& dataset) {
  try {
    return in_v1_words([&] { return data::distribute_stage(core, dataset, {.assignment = Assignment::TensorFlow}); });
  } catch (const InvalidArgument& error) {
    ErrorText text = error.text();
    text.help += "; make_input_fn_iterator takes batches of replicas, which it never divides";
    throw InvalidArgument(error.number(), std::move(text));
  }
}

InputContext worker_context(lockstep::Strategy& core, names::InputReplicationMode mode) {
  in_v1_words([&] { lockstep::detail::require_cross_replica(core, "make_input_fn_iterator"); });
  if (mode != names::InputReplicationMode::PER_WORKER) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("replication_mode must be PER_WORKER, got ", to_string(mode)),
                           .where = "make_input_fn_iterator",
                           .help = "for a pipeline per replica use core().distribute_from_function(input_fn, "
                                   "{.replication_mode = ReplicationMode::PerReplica})"});
  }
  return data::contexts_for_function(core, {}).at(0);
}

void names::throw_no_element_spec() {
  throw FailedPrecondition(errors::kBadOption, {.what = "an iterator over a callable has no element_spec",
                                                .help = "let input_fn return a dataset"});
}

void throw_no_input() {
  throw InvalidArgument(
      errors::kBadOption,
      {.what = "input_fn must return a dataset or a callable, got an empty std::function",
       .where = "make_input_fn_iterator",
       .help = "return a Dataset, or a function without arguments that gives a replica's next value"});
}

}  // namespace lockstep::compat
