#include "lockstep/data/distribute/describe.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/split_stages.h"
#include "lockstep/data/stages/batch.h"
#include "lockstep/data/stages/filter.h"
#include "lockstep/data/stages/nested.h"
#include "lockstep/data/stages/order.h"
#include "lockstep/data/stages/padded_batch.h"

namespace lockstep::data {
namespace {

bool reads_files(const Stage& stage);

/// Whether the datasets that a function makes read files: of its first element's dataset that can be seen.
bool makes_readers(const InterleaveStage& stage) {
  try {
    Element element;
    if (!stage.input()->iterate({})->next(element)) return false;
    return reads_files(*stage.expand(std::move(element)));
  } catch (const std::exception&) {
    return false;  // whoever iterates will see the error
  }
}

bool reads_files(const Stage& stage) {
  if (shard_role(std::string(stage.kind())) == ShardRole::Reader) return true;
  if (const auto* function = dynamic_cast<const InterleaveStage*>(&stage); function && makes_readers(*function))
    return true;
  return std::ranges::any_of(stage.inputs(), [](const StagePtr& input) { return reads_files(*input); });
}

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
    if (const auto* batch = dynamic_cast<const PaddedBatchStage*>(stage.get())) node.batch_size = batch->batch_size();
    if (const auto* shard = dynamic_cast<const ShardStage*>(stage.get())) node.hint = shard->is_hint();
    if (const auto* function = dynamic_cast<const InterleaveStage*>(stage.get())) {
      node.function_reads_files = look_into_functions_ && makes_readers(*function);
    }
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
  if (node.kind == "shard" && node.shards > 0) {
    return make_required_shard(std::move(inputs.at(0)), node.shards, node.shard);
  }
  const StagePtr& stage = description.stages.at(static_cast<std::size_t>(node.stage));
  return inputs == stage->inputs() ? stage : stage->with_inputs(std::move(inputs));
}

AutoShardPolicy policy_of(const Stage& pipeline) {
  // The options nearest to the end hold.
  for (const Stage* stage = &pipeline;; stage = stage->input().get()) {
    if (const auto* options = dynamic_cast<const OptionsStage*>(stage)) return options->options().auto_shard_policy;
    if (stage->inputs().empty()) return AutoShardPolicy::Auto;
  }
}

std::optional<TrailingBatch> trailing_batch(const Stage& pipeline) {
  const Stage* stage = &pipeline;
  while (stage->kind() == "prefetch" || stage->kind() == "with_options") stage = stage->input().get();
  const auto* batch = dynamic_cast<const BatchStage*>(stage);
  if (!batch || batch->kind() != "batch") return std::nullopt;
  return TrailingBatch{batch->batch_size(), batch->drop_remainder(), batch->input()->cardinality()};
}

}  // namespace lockstep::data
