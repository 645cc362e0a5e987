#include "lockstep/data/distribute/end_of_data.h"

#include <algorithm>

namespace lockstep::data {
namespace {

bool is_known(const StaticShape& shape) { return std::ranges::find(shape, kUnknownDim) == shape.end(); }

}  // namespace

bool handles_partial_steps(const DatasetFacts& facts, int workers) {
  if (facts.infinite) return false;
  return workers > 1 || !std::ranges::all_of(facts.shapes, is_known);
}

StepOutcome decide_step(bool partial_steps, int local_values, int local_replicas, std::int64_t total_values) {
  const bool exists = partial_steps ? total_values > 0 : local_values == local_replicas;
  return exists ? StepOutcome::Complete : StepOutcome::End;
}

}  // namespace lockstep::data
