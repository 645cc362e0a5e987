#pragma once

#include <optional>
#include <vector>

#include "lockstep/data/distribute/input_options.h"
#include "lockstep/data/distribute/pipeline_node.h"
#include "lockstep/data/distribute/split_stages.h"
#include "lockstep/data/stage.h"

// From stages to the description that plans work on, and back.
namespace lockstep::data {

struct PipelineDescription {
  PipelineNode root;
  std::vector<StagePtr> stages;  ///< PipelineNode::stage is a place in here
};

/// `look_into_functions`: calls the functions of flat_map and interleave with one element, to see whether they read
/// files; not where another function or a generator would have to run to get that element.
LOCKSTEP_EXPORT PipelineDescription describe_pipeline(const StagePtr& pipeline, bool look_into_functions);

/// The stages as a changed description has them. The file of a cache whose rows are one worker's only gets that
/// worker's number in its name.
LOCKSTEP_EXPORT StagePtr rebuild_pipeline(const PipelineNode& node, const PipelineDescription& description,
                                          TooFew too_few = TooFew::FailsOnEveryWorker);

/// The policy that the dataset's options name; Auto if they name none.
LOCKSTEP_EXPORT AutoShardPolicy policy_of(const Stage& pipeline);

/// A plain `batch` at the end of a pipeline, below stages that only pass batches on.
struct TrailingBatch {
  std::int64_t size = 0;
  bool drop_remainder = false;
};
LOCKSTEP_EXPORT std::optional<TrailingBatch> trailing_batch(const Stage& pipeline);

/// The first stage from the end that would have to run a function or a generator of the user's to give an element; null
/// if none.
LOCKSTEP_EXPORT const Stage* first_running(const Stage& stage);

}  // namespace lockstep::data
