#pragma once

#include <map>
#include <string>

#include "tests/golden/case.h"

// How the cases of each area are run. A runner executes the case through the public interface only, and returns the
// outcome in the form of the case's `expect`; errors that end the case are thrown.
namespace lockstep::golden {

json run_all_gather(const Case& given);
json run_all_reduce(const Case& given);
json run_batch_reduce(const Case& given);
json run_broadcast(const Case& given);
json run_context(const Case& given);
json run_create(const Case& given);
json run_gather(const Case& given);
json run_input_context(const Case& given);
json run_merge_call(const Case& given);
json run_pack(const Case& given);
json run_reduce(const Case& given);
json run_regroup(const Case& given);
json run_steps(const Case& given);
json run_values_from_function(const Case& given);

/// The runner of an area; UnknownForm for an unknown area.
json run_area(const Case& given);

/// Replicas run at the same time here and in turn in TensorFlow: of recorded events, only the order within each replica
/// is compared. Changes both lists; cases without events stay as they are.
void compare_events_per_replica(const Case& given, json& expected, json& got);

}  // namespace lockstep::golden
