#include "lockstep/data/distribute/input_plan.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/batch_sizes.h"
#include "lockstep/data/distribute/describe.h"
#include "lockstep/data/distribute/file_rows.h"
#include "lockstep/data/distribute/split_stages.h"

namespace lockstep::data {
namespace {

ElementSpec with_shapes(ElementSpec spec, const std::vector<StaticShape>& shapes) {
  if (!spec.components) return spec;
  for (std::size_t i = 0; i < spec.components->size(); ++i) {
    if (!shapes[i].empty()) (*spec.components)[i].shape = (*spec.components)[i].shape.with_dim0(shapes[i].front());
  }
  return spec;
}

/// A stream for one worker by TensorFlow's rules: split, and where rows are shared out, only the worker's pieces.
StagePtr make_stream(const InputPlan& plan, TooFew too_few) {
  const ClusterShape& cluster = plan.cluster;
  StagePtr stream = plan.pipeline;
  if (plan.split.rule == SplitRule::CeilSplit)
    stream = make_ceil_split(stream, cluster.replicas(), plan.split.told_unequal);
  if (plan.split.rule == SplitRule::BalancedStream) {
    stream = make_balanced_stream(stream, balanced_sizes(plan.global_batch_size, cluster));
  }
  if (plan.shards.by == ShardBy::Rows && cluster.workers > 1) {
    stream = make_required_shard(stream, cluster.workers, cluster.worker, too_few);
  }
  return stream;
}

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i) text += str(i ? "," : "", numbers[i]);
  return text;
}

/// More files or elements than these are not listed for a worker.
constexpr std::int64_t kNumbersInALine = 10;

/// "files 1,4,7", "file 1", "no file", "one element in 3, from element 0 on".
std::string share_of(const SharedOut& shared, int worker, int workers) {
  const std::string what = shared.files ? "file" : "element";
  if (!shared.count || *shared.count > kNumbersInALine * workers)
    return str("one ", what, " in ", workers, ", from ", what, " ", worker, " on");
  std::vector<int> own;
  for (int i = worker; i < *shared.count; i += workers) own.push_back(i);
  if (own.empty()) return "no " + what;
  return str(what, own.size() == 1 ? " " : "s ", joined(own));
}

std::string shares_of(const InputPlan& plan, int worker) {
  const std::vector<SharedOut> all = shared_out(plan.shards.pipeline);
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    text += str(i ? " and " : "", share_of(all[i], worker, plan.cluster.workers));
    if (all.size() > 1) text += str(" of source ", i);
  }
  return text;
}

/// The rows that a worker's replicas get.
Cardinality rows_of(const InputPlan& plan, const ClusterShape& cluster, const FileRows& files) {
  if (plan.cardinality.is_infinite()) return Cardinality::infinite();
  const auto batches = tally_batches(*plan.pipeline, {.worker = cluster.worker, .files = &files});
  if (!batches) return Cardinality::unknown();
  if (plan.is_one_stream()) return rows_of_worker(*batches, plan.split, cluster, Assignment::ByReplica);
  if (plan.shards.by == ShardBy::Rows) return rows_of_worker(*batches, plan.split, cluster, Assignment::TensorFlow);
  return batches->rows();
}

std::string counted_rows(Cardinality rows) {
  if (rows.is_infinite()) return "without end";
  if (rows.is_unknown()) return "rows unknown until read";
  return str(with_thousands(rows.value()), rows.value() == 1 ? " row" : " rows");
}

/// What a worker reads, and why.
std::string share_of_worker(const InputPlan& plan, const ClusterShape& cluster) {
  if (cluster.workers == 1) return "everything";
  const bool by_replica = plan.assignment == Assignment::ByReplica;
  if (by_replica || plan.shards.by == ShardBy::Rows) {
    return str(cluster.replicas_per_worker == 1 ? "piece " : "pieces ",
               joined(pieces_of_worker(cluster, plan.assignment)), " of every step's ", cluster.replicas(), " (",
               by_replica ? to_string(plan.assignment) : to_string(plan.shards.by), ")");
  }
  if (plan.shards.by == ShardBy::Nothing) return str("everything (", to_string(plan.policy), ")");
  return str(shares_of(plan, cluster.worker), " (", to_string(plan.shards.by), ")");
}

std::string worker_line(const InputPlan& plan, int worker, const FileRows& files) {
  ClusterShape cluster = plan.cluster;
  cluster.worker = worker;
  return str("worker ", worker, " of ", cluster.workers, ": ", share_of_worker(plan, cluster), ", ",
             counted_rows(rows_of(plan, cluster, files)));
}

/// Why batches are cut as they are, or shared as they are.
std::string reason_of(const InputPlan& plan) {
  const bool has_hints = plan.shards.by == ShardBy::Hint;
  if (plan.cluster.workers == 1) {
    if (plan.split.rule == SplitRule::None || plan.global_batch_size == kUnknownBatchSize) return "";
    const bool found_files = plan.policy == AutoShardPolicy::Auto && plan.shards.unshardable.empty();
    const std::string why = found_files ? "the data comes from files" : plan.shards.unshardable;
    return str(" (", to_string(plan.policy), why.empty() ? "" : ": ", why, ")");
  }
  if (!plan.shards.unshardable.empty()) return str("; rows instead of files, because ", plan.shards.unshardable);
  if (plan.assignment == Assignment::ByReplica) {
    if (plan.shards.by == ShardBy::Files) return "; every worker goes through all files";
    return has_hints ? "; shard(kShardHint, kShardHint) keeps everything, because pieces are shared out" : "";
  }
  if (plan.policy == AutoShardPolicy::Hint && !has_hints)
    return "; every worker reads everything, because there is no shard(kShardHint, kShardHint)";
  return "";
}

/// How many pieces the worker's stream has by TensorFlow's rules.
Cardinality pieces_of_stream_of(const InputPlan& plan, const ClusterShape& cluster) {
  const auto batches = tally_batches(*plan.pipeline, {.worker = cluster.worker});
  if (!batches) return Cardinality::unknown();
  if (plan.split.rule != SplitRule::BalancedStream) return multiplied(batches->batches(), cluster.replicas());
  const Cardinality rows = batches->rows();
  if (!rows.is_known() || plan.global_batch_size < 1) return Cardinality::unknown();
  const auto rest =
      pieces_of_stream(rows.value() % plan.global_batch_size, balanced_sizes(plan.global_batch_size, cluster));
  return rows.value() / plan.global_batch_size * cluster.replicas() + std::ssize(rest);
}

/// FILE by replica: nothing is shared out by file, but who asks for it should hear that there are none.
void require_files(const PipelineNode& pipeline, const ClusterShape& cluster) {
  plan_shards(pipeline, AutoShardPolicy::File, cluster, TooFew::FailsWhereSeen);
}

}  // namespace

Cardinality InputPlan::steps() const {
  const Cardinality batches = pipeline->cardinality();
  if (batches.is_infinite()) return batches;
  if (!is_one_stream() && shards.by != ShardBy::Rows) {
    // Until the last worker has had its last piece.
    std::int64_t steps = 0;
    for (int worker = 0; worker < cluster.workers; ++worker) {
      const Cardinality pieces = pieces_of_stream_of(*this, {cluster.workers, cluster.replicas_per_worker, worker});
      if (!pieces.is_known()) return pieces;
      steps = std::max(steps, (pieces.value() + cluster.replicas_per_worker - 1) / cluster.replicas_per_worker);
    }
    return steps;
  }
  // Each has a piece for every replica.
  if (split.rule != SplitRule::BalancedStream) return count_elements(*pipeline, {});
  const auto tally = tally_batches(*pipeline, {});
  const Cardinality all = tally ? tally->rows() : Cardinality::unknown();
  if (!all.is_known() || global_batch_size < 1) return Cardinality::unknown();
  const std::int64_t rest = all.value() % global_batch_size;
  const std::int64_t pieces = pieces_in_step(rest, balanced_sizes(global_batch_size, {1, cluster.replicas(), 0}));
  return all.value() / global_batch_size + (partial_steps ? pieces > 0 : pieces == cluster.replicas());
}

std::unique_ptr<StepSource> InputPlan::make_source(const IterationContext& context) const {
  if (is_one_stream()) return own_pieces(pipeline, split, context);
  return deal_in_turn(stream, cluster.replicas_per_worker, context);
}

std::string InputPlan::fingerprint() const {
  const std::string common =
      str(to_string(assignment), ", ", to_string(split.rule), " over ", cluster.replicas(), " replicas");
  if (assignment == Assignment::ByReplica) return str(common, "\n", data::fingerprint(*pipeline));
  return str(common, ", worker ", cluster.worker, " of ", cluster.workers, "\n", data::fingerprint(*stream));
}

InputPlan plan_input(const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment,
                     const ClusterShape& cluster, TooFew too_few) {
  check(cluster);
  const bool looks_for_files = policy == AutoShardPolicy::Auto || policy == AutoShardPolicy::File;
  const PipelineDescription description = describe_pipeline(dataset, looks_for_files);
  InputPlan plan{.cluster = cluster, .assignment = assignment, .policy = policy};
  // By replica, the stream is what one worker with all replicas would see.
  const ClusterShape seen_by = assignment == Assignment::ByReplica ? ClusterShape{1, cluster.replicas(), 0} : cluster;

  plan.cardinality = dataset->cardinality();
  const ElementSpec spec = dataset->element_spec();
  const std::vector<StaticShape> shapes = static_shapes(spec);
  if (cluster.replicas() > 1) {
    plan.global_batch_size = global_batch_size_of(*dataset, description.root);
    check_equal_rows(shapes);
  }
  if (policy == AutoShardPolicy::File && assignment == Assignment::ByReplica) require_files(description.root, cluster);
  plan.shards = plan_shards(description.root, policy, seen_by, too_few);
  plan.pipeline = rebuild_pipeline(plan.shards.pipeline, description, too_few);

  plan.split.rule = choose_split(plan.global_batch_size, plan.shards.by == ShardBy::Rows, cluster.replicas());
  plan.split.global_batch_size = plan.global_batch_size;
  plan.split.cluster = cluster;
  if (const auto batch = trailing_batch(*plan.pipeline)) {
    plan.split.batch = batch->size;
    plan.split.drop_remainder = batch->drop_remainder;
    // Rows below the batch can stand for the stream only if its pieces end where batches do.
    if (plan.split.rule == SplitRule::BalancedStream && batch->size != plan.global_batch_size) plan.split.batch.reset();
  }
  plan.partial_steps = handles_partial_steps({shapes, plan.cardinality.is_infinite()}, seen_by.workers);
  plan.element_spec =
      with_shapes(spec, distributed_shapes(shapes, plan.global_batch_size, seen_by, plan.partial_steps));
  plan.stream = make_stream(plan, too_few);
  if (!plan.is_one_stream() && (plan.shards.by == ShardBy::Files || plan.shards.by == ShardBy::Hint)) {
    const ShardPlan unshared = plan_shards(description.root, policy, {1, 1, 0});
    plan.everything = rebuild_pipeline(unshared.pipeline, description, too_few);
  }
  return plan;
}

std::vector<StaticShape> static_shapes(const ElementSpec& spec) {
  if (!spec.components) return {{kUnknownDim}};
  std::vector<StaticShape> shapes;
  for (const ComponentSpec& component : *spec.components) {
    shapes.push_back(component.shape.has_rank() ? component.shape.dims() : StaticShape{kUnknownDim});
  }
  return shapes;
}

std::int64_t global_batch_size_of(const Stage& dataset, const PipelineNode& description) {
  const std::int64_t by_shapes = batch_size_by_shapes(static_shapes(dataset.element_spec()));
  return by_shapes == kAskStages ? find_batch_size(description) : by_shapes;
}

Cardinality rows_of_worker(const BatchTally& batches, const GlobalSplit& split, const ClusterShape& cluster,
                           Assignment assignment) {
  const Cardinality all = batches.rows();
  if (!all.is_known() || split.rule == SplitRule::None) return all;
  const std::vector<int> own = pieces_of_worker(cluster, assignment);
  if (split.rule == SplitRule::CeilSplit) {
    std::int64_t sum = 0;
    for (const BatchRun& run : batches.runs) {
      for (const int piece : own) sum += run.batches * ceil_piece(run.rows, cluster.replicas(), piece).size();
    }
    return sum * batches.times;
  }
  const std::int64_t full = all.value() / split.global_batch_size;
  const std::int64_t rest = all.value() % split.global_batch_size;
  const auto sizes = balanced_sizes(split.global_batch_size, {1, cluster.replicas(), 0});
  std::int64_t sum = 0;
  for (const int piece : own) {
    const std::int64_t size = sizes[static_cast<std::size_t>(piece)];
    const std::int64_t before = std::accumulate(sizes.begin(), sizes.begin() + piece, std::int64_t{0});
    sum += full * size + std::clamp<std::int64_t>(rest - before, 0, size);
  }
  return sum;
}

std::string with_thousands(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

std::string to_string(const InputPlan& plan) {
  std::string text =
      str(counted(plan.cluster.workers, "worker"), " of ", counted(plan.cluster.replicas_per_worker, "replica"));
  if (plan.split.rule == SplitRule::None) {
    text += ", batches as they are";
  } else {
    text += plan.global_batch_size == kUnknownBatchSize ? ", batches of unknown size"
                                                        : str(", batches of ", with_thousands(plan.global_batch_size));
    text += str(", ", to_string(plan.split.rule));
  }
  text += reason_of(plan) + '\n';
  const FileRows files = rows_of_files(*plan.pipeline);
  for (int worker = 0; worker < plan.cluster.workers; ++worker) text += worker_line(plan, worker, files) + '\n';
  return text;
}

std::optional<std::string> fallback_warning(const InputPlan& plan) {
  const int workers = plan.cluster.workers;
  if (workers == 1) return std::nullopt;
  if (plan.policy == AutoShardPolicy::Hint && plan.shards.by == ShardBy::Nothing) {
    if (plan.assignment == Assignment::ByReplica) return std::nullopt;  // pieces are shared out anyway
    return str(
        "distribute: AutoShardPolicy::Hint shares out nothing, because the dataset has no "
        "shard(kShardHint, kShardHint). Each of the ",
        workers,
        " workers gets every row. Put the shard where the rows are to be shared out, or choose "
        "AutoShardPolicy::Off to say that this is meant.");
  }
  if (plan.assignment == Assignment::TensorFlow && plan.shards.by == ShardBy::Files) {
    if (!std::ranges::any_of(shared_out(plan.shards.pipeline), [](const SharedOut& shared) { return !shared.files; }))
      return std::nullopt;
    return str(
        "distribute: rows of files are shared out instead of the files, because a flat_map or interleave behind the "
        "reader gets them, as by TensorFlow's rule for functions of functions. Each of the ",
        workers, " workers reads all files and keeps 1/", workers,
        " of their rows. Use map and unbatch in place of that function, or let each worker read its own files with "
        "distribute_from_function.");
  }
  if (plan.policy != AutoShardPolicy::Auto || plan.shards.by != ShardBy::Rows) return std::nullopt;
  std::string reason = plan.shards.unshardable;
  if (plan.assignment == Assignment::ByReplica) {
    const PipelineNode* stage = first_computing_all(plan.shards.pipeline);
    if (stage == nullptr) return std::nullopt;  // the rows of others are passed over for nothing
    reason += str(", and ", stage->kind, " cannot pass over the rows of other workers without computing them");
  }
  return str("distribute: rows are shared out instead of files, because ", reason, ". Each of the ", workers,
             " workers reads and computes the whole dataset and keeps 1/", workers,
             " of it. Choose AutoShardPolicy::Data to say that this is meant, or let each worker read its own part "
             "with distribute_from_function.");
}

}  // namespace lockstep::data
