#include "lockstep/data/distribute/empty_batches.h"

#include <algorithm>

#include "lockstep/data/errors.h"
#include "lockstep/data/pipeline.h"

namespace lockstep::data {
namespace {

/// Reading for a shape only must not write a cache file, read another program's, or fill a buffer.
bool writes_or_buffers(const Stage& stage) {
  return stage.traits().cache == StageTraits::Cache::File || stage.traits().only_buffers;
}

}  // namespace

EmptyBatches::EmptyBatches(DistributedInputPtr input)
    : input_(std::move(input)), spec_is_enough_(tells_all(input_->element_spec)) {}

void EmptyBatches::learn_from(const std::vector<Element>& values) {
  const auto with_data = std::ranges::find_if(values, [](const Element& value) { return value.size() > 0; });
  if (with_data != values.end()) seen_ = without_rows(*with_data);
}

bool EmptyBatches::are_known(const IterationContext& context) {
  if (!are_told()) seen_ = first_without_rows(context);
  return are_told();
}

Element EmptyBatches::make(std::size_t replica) const {
  Element made = empty_batch(input_->element_spec, seen_);
  return replica < input_->devices.size() ? moved_to(std::move(made), input_->devices[replica]) : made;
}

void EmptyBatches::throw_unknown(std::int64_t step) const {
  // A worker that reads all rows reports the same error as the workers with rows.
  if (unseen_because_ && !input_->agreement) std::rethrow_exception(unseen_because_);
  throw FailedPrecondition(
      errors::kSignature,
      {.what = "a worker has no data, and what its empty batches should look like is not known",
       .where = str("step ", step, ", worker ", input_->cluster.worker, " of ", input_->cluster.workers),
       .seen = str("elements of ", to_string(input_->element_spec)),
       .help = "give `spec` to the map, flat_map or generator that makes the elements, or every worker some data"});
}

/// A worker without rows may still read the pipeline that all workers read, or the other workers' files, if they can be
/// read twice.
Element EmptyBatches::first_without_rows(const IterationContext& context) {
  std::vector<StagePtr> readable = input_->pipelines;
  if (input_->everything) readable.push_back(input_->everything);
  for (const StagePtr& pipeline : readable) {
    if (find_position_obstacle(*pipeline)) continue;
    try {
      const IteratorPtr elements = without_stages(pipeline, writes_or_buffers)->iterate(context.unmeasured());
      constexpr int kTries = 100;  // every row may fail
      Place place;
      for (int k = 0; k < kTries && place.read(*elements); ++k) {
        if (!place.error && place.element.size() > 0) return without_rows(place.element);
        if (!unseen_because_) unseen_because_ = place.error;
      }
    } catch (...) {
      continue;  // perhaps readable on other workers only
    }
  }
  return {};
}

}  // namespace lockstep::data
