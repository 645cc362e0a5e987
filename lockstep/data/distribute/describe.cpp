#include "lockstep/data/distribute/describe.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/split_stages.h"
#include "lockstep/data/stages/batch.h"

namespace lockstep::data {
namespace {

class Describer {
 public:
  Describer(PipelineDescription& description, bool look_into_functions)
      : description_(description), look_into_functions_(look_into_functions) {}

  PipelineNode describe(const StagePtr& stage) {
    PipelineNode node{.kind = std::string(stage->kind()), .stage = static_cast<int>(description_.stages.size())};
    description_.stages.push_back(stage);
    if (const Cardinality cardinality = stage->cardinality(); cardinality.is_known())
      node.cardinality = cardinality.value();
    if (const auto* batch = dynamic_cast<const BatchStage*>(stage.get())) node.batch_size = batch->batch_size();
    for (const StagePtr& input : stage->inputs()) node.inputs.push_back(describe(input));
    return node;
  }

 private:
  PipelineDescription& description_;
  bool look_into_functions_;
};

}  // namespace

PipelineDescription describe_pipeline(const StagePtr& pipeline, bool look_into_functions) {
  PipelineDescription description;
  description.root = Describer(description, look_into_functions).describe(pipeline);
  return description;
}

StagePtr rebuild_pipeline(const PipelineNode& node, const PipelineDescription& description) {
  std::vector<StagePtr> inputs;
  for (const PipelineNode& input : node.inputs) inputs.push_back(rebuild_pipeline(input, description));
  if (node.kind == "shard" && node.shards > 0)
    return make_required_shard(std::move(inputs.at(0)), node.shards, node.shard);
  const StagePtr& stage = description.stages.at(static_cast<std::size_t>(node.stage));
  return inputs == stage->inputs() ? stage : stage->with_inputs(std::move(inputs));
}

AutoShardPolicy policy_of(const Stage&) { return AutoShardPolicy::Auto; }

std::optional<TrailingBatch> trailing_batch(const Stage& pipeline) {
  const Stage* stage = &pipeline;
  while (stage->kind() == "prefetch" || stage->kind() == "with_options") stage = stage->input().get();
  const auto* batch = dynamic_cast<const BatchStage*>(stage);
  if (!batch || batch->kind() != "batch") return std::nullopt;
  return TrailingBatch{batch->batch_size(), batch->drop_remainder(), batch->input()->cardinality()};
}

}  // namespace lockstep::data
