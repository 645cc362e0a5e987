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
  if (plan.split.rule == SplitRule::CeilSplit) stream = make_ceil_split(stream, cluster.replicas());
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

/// The number of files or elements that the first shard of a plan shares out, if known.
std::optional<std::int64_t> shared_elements(const PipelineNode& node) {
  if (node.shards > 0) return node.inputs.at(0).cardinality;
  for (const PipelineNode& input : node.inputs) {
    if (auto found = shared_elements(input)) return found;
  }
  return std::nullopt;
}

/// More files or elements than these are not listed for a worker.
constexpr std::int64_t kNumbersInALine = 10;

/// The rows that a worker reads or cuts from, if anybody knows.
std::optional<std::int64_t> rows_of(const InputPlan& plan, const ClusterShape& cluster,
                                    const std::optional<std::vector<std::int64_t>>& files) {
  const bool one_stream = plan.is_one_stream();
  if (!one_stream && plan.shards.by == ShardBy::Files) {
    if (!files) return std::nullopt;
    std::int64_t sum = 0;
    for (std::size_t i = static_cast<std::size_t>(cluster.worker); i < files->size();
         i += static_cast<std::size_t>(cluster.workers))
      sum += (*files)[i];
    return sum;
  }
  std::optional<std::int64_t> all = plan.rows;
  if (!all && files) all = std::accumulate(files->begin(), files->end(), std::int64_t{0});
  if (!all || (!one_stream && plan.shards.by == ShardBy::Hint)) return std::nullopt;
  if (!one_stream && plan.shards.by == ShardBy::Nothing) return all;
  if (!plan.split.batch) return std::nullopt;
  return rows_of_worker(*all, *plan.split.batch, plan.split.drop_remainder, plan.split.rule, cluster,
                        one_stream ? Assignment::ByReplica : Assignment::TensorFlow);
}

std::string worker_line(const InputPlan& plan, int worker, const std::optional<std::vector<std::int64_t>>& files) {
  ClusterShape cluster = plan.cluster;
  cluster.worker = worker;
  std::string text = str("worker ", worker, " of ", cluster.workers, ": ");
  const bool one_stream = plan.is_one_stream();
  const bool by_row = one_stream || plan.shards.by == ShardBy::Rows;
  if (one_stream && plan.split.rule == SplitRule::None) {
    text += "every batch";
  } else if (by_row) {
    text += str(cluster.replicas_per_worker == 1 ? "piece " : "pieces ",
                joined(pieces_of_worker(cluster, one_stream ? Assignment::ByReplica : Assignment::TensorFlow)),
                " of every step's ", cluster.replicas());
  } else if (plan.shards.by == ShardBy::Nothing) {
    text += "everything";
  } else if (const auto elements = shared_elements(plan.shards.pipeline);
             elements && *elements <= kNumbersInALine * cluster.workers) {
    std::vector<int> own;
    for (int i = worker; i < *elements; i += cluster.workers) own.push_back(i);
    text += str(plan.shards.by == ShardBy::Files ? "files " : "elements ", joined(own));
  } else {
    const char* what = plan.shards.by == ShardBy::Files ? "file" : "element";
    text += str("one ", what, " in ", cluster.workers, ", from ", what, " ", worker, " on");
  }
  text += str(" (",
              cluster.workers > 1 && plan.assignment == Assignment::ByReplica ? to_string(plan.assignment)
                                                                              : to_string(plan.shards.by),
              ")");
  if (const auto rows = rows_of(plan, cluster, files))
    text += str(", ", with_thousands(*rows), " rows");
  else
    text += plan.cardinality.is_infinite() ? ", without end" : ", rows unknown until read";
  return text;
}

}  // namespace

Cardinality InputPlan::steps() const {
  const Cardinality batches = pipeline->cardinality();
  const bool shared_out = !is_one_stream() && (shards.by == ShardBy::Files || shards.by == ShardBy::Hint);
  if (batches.is_infinite()) return batches;
  if (shared_out) return Cardinality::unknown();  // the others have as much as their files
  if (split.rule != SplitRule::BalancedStream) {
    // Each batch has a piece for every replica of all workers; who reads everything keeps them all.
    return is_one_stream() || shards.by == ShardBy::Rows ? batches : multiplied(batches, cluster.workers);
  }
  const Cardinality all = rows_in_batches(*pipeline);
  if (!all.is_known() || global_batch_size < 1) return Cardinality::unknown();
  const std::int64_t full = all.value() / global_batch_size;
  const std::int64_t rest = all.value() % global_batch_size;
  if (is_one_stream()) {
    const std::int64_t pieces = pieces_in_step(rest, balanced_sizes(global_batch_size, {1, cluster.replicas(), 0}));
    return full + (partial_steps ? pieces > 0 : pieces == cluster.replicas());
  }
  std::int64_t steps = 0;
  for (int worker = 0; worker < cluster.workers; ++worker) {
    const ClusterShape shape{cluster.workers, cluster.replicas_per_worker, worker};
    const std::int64_t pieces =
        full * cluster.replicas() + std::ssize(pieces_of_stream(rest, balanced_sizes(global_batch_size, shape)));
    steps = std::max(steps, (pieces + cluster.replicas_per_worker - 1) / cluster.replicas_per_worker);
  }
  return steps;
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
  plan.shards = plan_shards(description.root, policy, seen_by);
  plan.pipeline = rebuild_pipeline(plan.shards.pipeline, description, too_few);

  plan.split.rule = choose_split(plan.global_batch_size, plan.shards.by == ShardBy::Rows, cluster.replicas());
  plan.split.global_batch_size = plan.global_batch_size;
  plan.split.cluster = cluster;
  if (const auto batch = trailing_batch(*plan.pipeline)) {
    plan.split.batch = batch->size;
    plan.split.drop_remainder = batch->drop_remainder;
    if (batch->rows.is_known()) plan.rows = batch->rows.value();
    // Rows below the batch can stand for the stream only if its pieces end where batches do.
    if (plan.split.rule == SplitRule::BalancedStream && batch->size != plan.global_batch_size) plan.split.batch.reset();
  }
  plan.partial_steps = handles_partial_steps({shapes, plan.cardinality.is_infinite()}, seen_by.workers);
  plan.element_spec =
      with_shapes(spec, distributed_shapes(shapes, plan.global_batch_size, seen_by, plan.partial_steps));
  plan.stream = make_stream(plan, too_few);
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

std::int64_t rows_of_worker(std::int64_t rows, std::int64_t batch, bool drop_remainder, SplitRule rule,
                            const ClusterShape& cluster, Assignment assignment) {
  const std::vector<int> own = pieces_of_worker(cluster, assignment);
  const auto of_batch = [&](std::int64_t size) {
    std::int64_t sum = 0;
    if (rule == SplitRule::None) return size;
    if (rule == SplitRule::CeilSplit) {
      for (const int piece : own) sum += ceil_piece(size, cluster.replicas(), piece).size();
      return sum;
    }
    const auto sizes = balanced_sizes(batch, {1, cluster.replicas(), 0});
    for (const int piece : own) {
      const std::int64_t before = std::accumulate(sizes.begin(), sizes.begin() + piece, std::int64_t{0});
      sum += std::clamp<std::int64_t>(size - before, 0, sizes[static_cast<std::size_t>(piece)]);
    }
    return sum;
  };
  return rows / batch * of_batch(batch) + (drop_remainder ? 0 : of_batch(rows % batch));
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
  if (plan.assignment == Assignment::ByReplica && plan.cluster.workers > 1 && plan.shards.by == ShardBy::Files)
    text += "; every worker goes through all files";
  if (!plan.shards.unshardable.empty()) text += str("; rows instead of files, because ", plan.shards.unshardable);
  text += '\n';
  const auto files = rows_of_files(*plan.pipeline);
  for (int worker = 0; worker < plan.cluster.workers; ++worker) text += worker_line(plan, worker, files) + '\n';
  return text;
}

std::optional<std::string> fallback_warning(const InputPlan& plan) {
  const bool fell_back = plan.policy == AutoShardPolicy::Auto && plan.shards.by == ShardBy::Rows;
  if (!fell_back || plan.cluster.workers == 1) return std::nullopt;
  std::string reason = plan.shards.unshardable;
  if (plan.assignment == Assignment::ByReplica) {
    const PipelineNode* stage = first_computing_all(plan.shards.pipeline);
    if (stage == nullptr) return std::nullopt;  // the rows of others are passed over for nothing
    reason += str(", and ", stage->kind, " cannot pass over the rows of other workers without computing them");
  }
  return str("distribute: rows are shared out instead of files, because ", reason, ". Each of the ",
             plan.cluster.workers, " workers reads and computes the whole dataset and keeps 1/", plan.cluster.workers,
             " of it. Choose AutoShardPolicy::Data to say that this is meant, or let each worker read its own part "
             "with distribute_from_function.");
}

}  // namespace lockstep::data
