#include "lockstep/data/distribute/shard_plan.h"

#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

constexpr const char* kWhere = "distribute, auto-shard policy ";

/// Puts shard(workers, worker) into a pipeline so that every worker gets files of its own.
class FileSharder {
 public:
  FileSharder(const ClusterShape& cluster, std::vector<std::string>& removed) : cluster_(cluster), removed_(removed) {}

  /// Changes `node`; returns why it cannot be done, and then `node` may be half changed.
  std::optional<std::string> apply(PipelineNode& node) {
    switch (shard_role(node.kind)) {
      case ShardRole::Assertion: {
        removed_.push_back(node.kind);
        PipelineNode input = std::move(node.inputs.at(0));
        node = std::move(input);
        return apply(node);
      }
      case ShardRole::Source:
      case ShardRole::Slices: return str(node.kind, " has no files that could be shared out");
      case ShardRole::AllInputs:
        for (PipelineNode& input : node.inputs) {
          if (auto failure = apply(input)) return failure;
        }
        return std::nullopt;
      case ShardRole::Function:
        if (PipelineNode* reader = consumer_of_inner_function(node)) {
          shard_input(*reader);
          return std::nullopt;
        }
        if (node.function_reads_files) {
          shard_input(node);
          return std::nullopt;
        }
        if (auto failure = apply(node.inputs.at(0))) {
          if (node.unseen_because_of.empty()) return failure;
          return str("whether the function of ", node.kind, " reads files cannot be seen without running ",
                     node.unseen_because_of);
        }
        return std::nullopt;
      case ShardRole::Reader:
        if (node.inputs.empty()) return str(node.kind, " does not get its files from a dataset of names");
        shard_input(node);
        return std::nullopt;
      case ShardRole::PassThrough: return apply(node.inputs.at(0));
      case ShardRole::Other: return str(node.kind, " cannot be looked through for files");
    }
    return std::nullopt;
  }

 private:
  void shard_input(PipelineNode& node) {
    PipelineNode input = std::move(node.inputs.at(0));
    std::vector<PipelineNode> shuffles;
    take_shuffles(input, shuffles);
    PipelineNode sharded{.kind = "shard", .shards = cluster_.workers, .shard = cluster_.worker};
    sharded.inputs.push_back(std::move(input));
    // A shuffle in front of the shard would give the workers different files only by chance; behind it each shuffles
    // its own.
    for (auto shuffle = shuffles.rbegin(); shuffle != shuffles.rend(); ++shuffle) {
      shuffle->inputs = {std::move(sharded)};
      shuffle->cardinality.reset();
      sharded = std::move(*shuffle);
    }
    node.inputs.at(0) = std::move(sharded);
  }

  static void take_shuffles(PipelineNode& node, std::vector<PipelineNode>& shuffles) {
    while (node.kind == "shuffle") {
      PipelineNode input = std::move(node.inputs.at(0));
      node.inputs.clear();
      shuffles.push_back(std::move(node));
      node = std::move(input);
    }
    for (PipelineNode& input : node.inputs) take_shuffles(input, shuffles);
  }

  /// For `...function < (pass-through) < function < list`: the stage that reads from the inner function, if there is
  /// one. Its elements are shared out then, not those of the list.
  PipelineNode* consumer_of_inner_function(PipelineNode& outer) const {
    PipelineNode* consumer = &outer;
    while (true) {
      PipelineNode& node = consumer->inputs.at(0);
      const ShardRole role = shard_role(node.kind);
      if (is_function_of_list(node, role)) return consumer;
      if (role != ShardRole::PassThrough) return nullptr;
      consumer = &node;
    }
  }

  static bool is_function_of_list(const PipelineNode& node, ShardRole role) {
    const bool makes_elements = role == ShardRole::Function || role == ShardRole::Reader;
    return makes_elements && !node.inputs.empty() && shard_role(node.inputs.front().kind) == ShardRole::Slices;
  }

  const ClusterShape& cluster_;
  std::vector<std::string>& removed_;
};

void fill_in_hints(PipelineNode& node, const ClusterShape& cluster) {
  if (node.hint) {
    node.hint = false;
    node.shards = cluster.workers;
    node.shard = cluster.worker;
  }
  for (PipelineNode& input : node.inputs) fill_in_hints(input, cluster);
}

/// Takes out the assertions that the walk towards the files meets.
void remove_assertions(PipelineNode& node, std::vector<std::string>& removed) {
  while (shard_role(node.kind) == ShardRole::Assertion) {
    removed.push_back(node.kind);
    PipelineNode input = std::move(node.inputs.at(0));
    node = std::move(input);
  }
  const ShardRole role = shard_role(node.kind);
  if (role == ShardRole::PassThrough || role == ShardRole::AllInputs ||
      (role == ShardRole::Function && !node.function_reads_files)) {
    for (PipelineNode& input : node.inputs) remove_assertions(input, removed);
  }
}

void check_enough(const PipelineNode& node, ShardBy by) {
  if (node.shards > 1) {
    const std::optional<std::int64_t> elements = node.inputs.at(0).cardinality;
    if (elements && *elements > 0 && *elements < node.shards) {
      throw InvalidArgument(
          errors::kTooFewElements,
          {.what = str("there are not enough files or elements for ", counted(node.shards, "worker")),
           .where = str(kWhere, to_string(by)),
           .seen = str(counted(*elements, "element"), " to share out among ", node.shards, " workers"),
           .help = "switch sharding off with AutoShardPolicy::Off, share out rows with AutoShardPolicy::Data, or split "
                   "the data into more files"});
    }
  }
  for (const PipelineNode& input : node.inputs) check_enough(input, by);
}

}  // namespace

std::string_view to_string(ShardBy by) {
  switch (by) {
    case ShardBy::Nothing: return "OFF";
    case ShardBy::Files: return "FILE";
    case ShardBy::Rows: return "DATA";
    case ShardBy::Hint: return "HINT";
  }
  return "";
}

ShardPlan plan_shards(const PipelineNode& pipeline, AutoShardPolicy policy, const ClusterShape& cluster) {
  check(cluster);
  if (policy != AutoShardPolicy::Hint && has_shard_hint(pipeline)) {
    throw FailedPrecondition(
        errors::kSharding, {.what = "shard(kShardHint, kShardHint) waits for numbers that nobody fills in",
                            .where = str(kWhere, to_string(policy)),
                            .help = "choose AutoShardPolicy::Hint in the dataset's options, or give numbers to shard"});
  }
  ShardPlan plan{.pipeline = pipeline};
  switch (policy) {
    case AutoShardPolicy::Off: return plan;
    case AutoShardPolicy::Data: plan.by = ShardBy::Rows; return plan;
    case AutoShardPolicy::Hint:
      plan.by = ShardBy::Hint;
      fill_in_hints(plan.pipeline, cluster);
      return plan;
    case AutoShardPolicy::File:
      plan.by = ShardBy::Files;
      if (cluster.workers == 1) return plan;
      break;
    case AutoShardPolicy::Auto: break;
    default: to_string(policy);  // throws
  }
  const auto failure = FileSharder(cluster, plan.removed).apply(plan.pipeline);
  if (!failure && cluster.workers > 1) {
    plan.by = ShardBy::Files;
    return plan;
  }
  if (failure && policy == AutoShardPolicy::File) {
    throw NotFound(
        errors::kSharding,
        {.what = "the dataset cannot be shared out by file",
         .where = str(kWhere, "FILE"),
         .seen = *failure,
         .help = "use AutoShardPolicy::Data or Off, read the files through a dataset of their names, or make "
                 "each worker's pipeline yourself with distribute_from_function"});
  }
  // Start again from the pipeline as it was: with one worker there is nothing to share out, and what one input was
  // given before another failed must not stay.
  plan.pipeline = pipeline;
  plan.removed.clear();
  remove_assertions(plan.pipeline, plan.removed);
  plan.by = failure ? ShardBy::Rows : ShardBy::Files;
  plan.unshardable = failure.value_or("");
  return plan;
}

void check_enough_for_all(const ShardPlan& plan) { check_enough(plan.pipeline, plan.by); }

void check_shard(std::int64_t shards, std::int64_t index) {
  if (shards == kShardHint) {
    throw FailedPrecondition(errors::kSharding,
                             {.what = "shard(kShardHint, kShardHint) waits for numbers that nobody fills in",
                              .where = "shard",
                              .help = "distribute the dataset with AutoShardPolicy::Hint"});
  }
  if (shards < 1 || index < 0 || index >= shards) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("there is no shard ", index, " of ", shards),
                           .where = "shard",
                           .help = "the number of shards is at least 1 and the index from 0 to that number less 1"});
  }
}

}  // namespace lockstep::data
