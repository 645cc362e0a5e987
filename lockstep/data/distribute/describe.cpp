#include "lockstep/data/distribute/describe.h"

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/split_stages.h"
#include "lockstep/data/stages/batch.h"
#include "lockstep/data/stages/cache.h"
#include "lockstep/data/stages/filter.h"
#include "lockstep/data/stages/nested.h"
#include "lockstep/data/stages/order.h"
#include "lockstep/data/stages/padded_batch.h"

namespace lockstep::data {
namespace {

// What gives an element without running a function or a generator of the user's.
const std::set<std::string, std::less<>> kPlainSources = {"range",
                                                          "from_tensors",
                                                          "from_tensor_slices",
                                                          "list_files",
                                                          "from_npy",
                                                          "elements",
                                                          "tfrecord",
                                                          "text_line",
                                                          "csv",
                                                          "zip",
                                                          "fixed_length_record",
                                                          "concatenate",
                                                          "batch",
                                                          "padded_batch",
                                                          "shuffle",
                                                          "repeat",
                                                          "take",
                                                          "skip",
                                                          "with_options",
                                                          "prefetch",
                                                          "shard",
                                                          "enumerate",
                                                          "parse_example",
                                                          "unbatch"};
// Whose elements are their input's.
const std::set<std::string, std::less<>> kPassesOn = {
    "shuffle", "repeat", "take", "skip", "shard", "cache", "with_options", "prefetch", "assert_cardinality"};

/// The stage without what only reorders elements or reads them ahead: a look at one element must not fill a buffer.
StagePtr without_buffers(const StagePtr& stage) {
  const std::string_view kind = stage->kind();
  if (kind == "shuffle" || kind == "prefetch") return without_buffers(stage->input());
  std::vector<StagePtr> inputs;
  for (const StagePtr& input : stage->inputs()) inputs.push_back(without_buffers(input));
  return inputs == stage->inputs() ? stage : stage->with_inputs(std::move(inputs));
}

/// Looks for files in the datasets that functions make. A function is called once, with an element that can be had
/// without running anything else of the user's, as its graph would be traced.
class FunctionLook {
 public:
  bool makes_readers(const InterleaveStage& stage) {
    const StagePtr made = make(stage);
    return made && reads_files(*made);
  }
  /// The stage that kept it from looking.
  const std::string& obstacle() const { return obstacle_; }

 private:
  StagePtr make(const InterleaveStage& stage) {
    try {
      auto element = example(*stage.input());
      return element ? stage.expand(std::move(*element)) : nullptr;
    } catch (...) {
      return nullptr;  // whoever iterates will see the error, whatever was thrown
    }
  }

  std::optional<Element> example(const Stage& stage) {
    if (const auto* function = dynamic_cast<const InterleaveStage*>(&stage)) {
      const StagePtr made = make(*function);
      return made ? example(*made) : std::nullopt;
    }
    const Stage* running = first_running(stage);
    if (running == nullptr) {
      Element element;
      return without_buffers(stage.shared_from_this())->iterate({})->next(element) ? std::optional(std::move(element))
                                                                                   : std::nullopt;
    }
    if (kPassesOn.contains(stage.kind())) return example(*stage.input());
    obstacle_ = running->describe();
    return std::nullopt;
  }

  bool reads_files(const Stage& stage) {
    if (shard_role(std::string(stage.kind())) == ShardRole::Reader) return true;
    if (const auto* function = dynamic_cast<const InterleaveStage*>(&stage); function && makes_readers(*function))
      return true;
    return std::ranges::any_of(stage.inputs(), [this](const StagePtr& input) { return reads_files(*input); });
  }

  std::string obstacle_;
};

/// A shard below `node` that gives each of several workers something else.
const PipelineNode* find_shard(const PipelineNode& node) {
  if (node.shards > 1) return &node;
  for (const PipelineNode& input : node.inputs) {
    if (const PipelineNode* found = find_shard(input)) return found;
  }
  return nullptr;
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
    if (const auto* function = dynamic_cast<const InterleaveStage*>(stage.get()); function && look_into_functions_) {
      FunctionLook look;
      node.function_reads_files = look.makes_readers(*function);
      node.unseen_because_of = look.obstacle();
    }
    for (const StagePtr& input : stage->inputs()) node.inputs.push_back(describe(input));
    return node;
  }

 private:
  PipelineDescription& description_;
  bool look_into_functions_;
};

}  // namespace

const Stage* first_running(const Stage& stage) {
  if (!kPlainSources.contains(stage.kind())) return &stage;
  for (const StagePtr& input : stage.inputs()) {
    if (const Stage* found = first_running(*input)) return found;
  }
  return nullptr;
}

PipelineDescription describe_pipeline(const StagePtr& pipeline, bool look_into_functions) {
  // Plans are trees that are read and changed by recursion; twice as many stages still fit into a stack of 8 MB.
  constexpr std::int64_t kDeepest = 4000;
  if (const std::int64_t depth = depth_of(*pipeline); depth > kDeepest) {
    throw InvalidArgument(
        errors::kSharding,
        {.what = str("a pipeline of ", depth, " stages one behind the other cannot be distributed"),
         .where = "distribute",
         .seen = str("at most ", kDeepest, " stages can be"),
         .help = "join many datasets with one flat_map or interleave (over a dataset of their numbers "
                 "or names), or concatenate them in pairs and the pairs again, not in a chain"});
  }
  PipelineDescription description;
  description.root = Describer(description, look_into_functions).describe(pipeline);
  return description;
}

StagePtr rebuild_pipeline(const PipelineNode& node, const PipelineDescription& description, TooFew too_few) {
  std::vector<StagePtr> inputs;
  for (const PipelineNode& input : node.inputs) inputs.push_back(rebuild_pipeline(input, description, too_few));
  if (node.kind == "shard" && node.shards > 0) {
    return make_required_shard(std::move(inputs.at(0)), node.shards, node.shard, too_few);
  }
  const StagePtr& stage = description.stages.at(static_cast<std::size_t>(node.stage));
  if (const auto* cache = dynamic_cast<const CacheStage*>(stage.get()); cache && !cache->path().empty()) {
    if (const PipelineNode* shard = find_shard(node))
      return std::make_shared<CacheStage>(std::move(inputs.at(0)),
                                          str(cache->path(), ".", shard->shard, "-of-", shard->shards));
  }
  return inputs == stage->inputs() ? stage : stage->with_inputs(std::move(inputs));
}

AutoShardPolicy policy_of(const Stage& pipeline) {
  // The options nearest to the end hold; of several inputs with options, those of the last.
  std::vector<const Stage*> waiting{&pipeline};
  while (!waiting.empty()) {
    const Stage* stage = waiting.back();
    waiting.pop_back();
    if (const auto* options = dynamic_cast<const OptionsStage*>(stage)) return options->options().auto_shard_policy;
    for (const StagePtr& input : stage->inputs()) waiting.push_back(input.get());
  }
  return AutoShardPolicy::Auto;
}

std::optional<TrailingBatch> trailing_batch(const Stage& pipeline) {
  const Stage* stage = &pipeline;
  while (stage->kind() == "prefetch" || stage->kind() == "with_options") stage = stage->input().get();
  const auto* batch = dynamic_cast<const BatchStage*>(stage);
  if (!batch || batch->kind() != "batch") return std::nullopt;
  return TrailingBatch{batch->batch_size(), batch->drop_remainder()};
}

}  // namespace lockstep::data
