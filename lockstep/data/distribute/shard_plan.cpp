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
      case ShardRole::Slices: return str(node.kind, " has no files");
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
        if (node.inputs.empty()) return str(node.kind, " does not get the names of its files from a dataset");
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

/// `consumer`: the stage that uses what `node` gives, shuffles aside.
void find_shared(const PipelineNode& node, const PipelineNode* consumer, std::vector<SharedOut>& found) {
  if (node.shards > 0) {
    const bool files = consumer && (shard_role(consumer->kind) == ShardRole::Reader || consumer->function_reads_files);
    found.push_back({files, node.inputs.at(0).cardinality});
    return;
  }
  for (const PipelineNode& input : node.inputs) find_shared(input, node.kind == "shuffle" ? consumer : &node, found);
}

void check_enough(const ShardPlan& plan, int workers) {
  for (const SharedOut& shared : shared_out(plan.pipeline)) {
    if (!shared.count || *shared.count == 0 || *shared.count >= workers) continue;
    const char* what = shared.files ? "file" : "element";
    throw InvalidArgument(
        errors::kTooFewElements,
        {.what = str("there are not enough ", what, "s for ", counted(workers, "worker")),
         .where = str(kWhere, to_string(plan.by)),
         .seen = str(counted(*shared.count, what), " to share out among ", workers, " workers"),
         .help = str("switch sharding off with AutoShardPolicy::Off, share out rows with AutoShardPolicy::Data",
                     shared.files ? ", or split the data into more files" : "")});
  }
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

std::vector<SharedOut> shared_out(const PipelineNode& planned) {
  std::vector<SharedOut> found;
  find_shared(planned, nullptr, found);
  return found;
}

ShardPlan plan_shards(const PipelineNode& pipeline, AutoShardPolicy policy, const ClusterShape& cluster,
                      TooFew too_few) {
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
      if (!has_shard_hint(pipeline)) return plan;  // there is nothing to fill in, so everybody reads everything
      plan.by = ShardBy::Hint;
      fill_in_hints(plan.pipeline, cluster);
      if (too_few == TooFew::FailsOnEveryWorker) check_enough(plan, cluster.workers);
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
    if (too_few == TooFew::FailsOnEveryWorker) check_enough(plan, cluster.workers);
    return plan;
  }
  if (failure && policy == AutoShardPolicy::File) {
    throw NotFound(
        errors::kSharding,
        {.what = "the dataset cannot be shared out by file",
         .where = str(kWhere, "FILE"),
         .seen = *failure,
         .help = "share out rows with AutoShardPolicy::Data, read the files through a dataset of their names, or make "
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
