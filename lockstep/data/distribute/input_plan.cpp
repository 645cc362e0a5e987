#include "lockstep/data/distribute/input_plan.h"

#include <algorithm>

#include "lockstep/data/distribute/ceil_split.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/data/stages/balanced_cutter.h"
#include "lockstep/data/stages/batch_sizes.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {
namespace {

/// A stream for one worker by TensorFlow's rules: batches are split, and if rows are shared, only the worker's pieces
/// remain.
StagePtr make_stream(const InputPlan& plan, TooFew too_few) {
  const ClusterShape& cluster = plan.cluster;
  StagePtr stream = plan.pipeline();
  if (plan.split.rule == SplitRule::CeilSplit)
    stream = make_ceil_split(stream, cluster.replicas(), plan.split.warnings);
  if (plan.split.rule == SplitRule::BalancedStream) {
    stream = make_rebatch(stream, balanced_sizes(plan.global_batch_size, cluster));
  }
  if (plan.shards.by == AutoShardPolicy::Data && cluster.workers > 1) {
    stream = make_required_shard(stream, cluster.workers, cluster.worker, too_few);
  }
  return stream;
}

/// Longer lists of files or elements are abbreviated.
constexpr std::int64_t kNumbersInALine = 10;

/// "files 1,4,7", "file 1", "no file", "one element in 3, from element 0 on".
std::string share_of(const SharedOut& shared, int worker, int workers) {
  const std::string what = shared.files ? "file" : "element";
  if (!shared.count || *shared.count > kNumbersInALine * workers)
    return str("one ", what, " in ", workers, ", from ", what, " ", worker, " on");
  std::vector<int> own;
  for (int i = worker; i < *shared.count; i += workers) own.push_back(i);
  if (own.empty()) return "no " + what;
  return str(what, own.size() == 1 ? " " : "s ", listed(own, ","));
}

std::string shares_of(const InputPlan& plan, int worker) {
  const std::vector<SharedOut>& all = plan.shards.shared;
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    text += str(i ? " and " : "", share_of(all[i], worker, plan.cluster.workers));
    if (all.size() > 1) text += str(" of source ", i);
  }
  return text;
}

/// One worker's part, and why.
std::string share_of_worker(const InputPlan& plan, const ClusterShape& cluster) {
  if (cluster.workers == 1) return "everything";
  const bool by_replica = plan.assignment == Assignment::ByReplica;
  if (by_replica || plan.shards.by == AutoShardPolicy::Data) {
    return str(cluster.replicas_per_worker == 1 ? "piece " : "pieces ",
               listed(pieces_of_worker(cluster, plan.assignment), ","), " of every step's ", cluster.replicas(), " (",
               by_replica ? to_string(plan.assignment) : to_string(plan.shards.by), ")");
  }
  if (plan.shards.by == AutoShardPolicy::Off) return str("everything (", to_string(plan.policy), ")");
  return str(shares_of(plan, cluster.worker), " (", to_string(plan.shards.by), ")");
}

constexpr auto reads_files = [](const Stage& stage) { return stage.traits().source == StageTraits::Source::Files; };

/// Why batches are cut, or shared, in this way.
std::string reason_of(const InputPlan& plan) {
  const bool has_hints = plan.shards.by == AutoShardPolicy::Hint;
  const bool by_replica = plan.assignment == Assignment::ByReplica;
  if (plan.cluster.workers == 1) {
    if (by_replica || plan.split.rule == SplitRule::None || plan.global_batch_size == kUnknownBatchSize) return "";
    const bool found_files = plan.policy == AutoShardPolicy::Auto && plan.shards.unshardable.empty();
    const std::string why = found_files ? "the data comes from files" : plan.shards.unshardable;
    return str(" (", to_string(plan.policy), why.empty() ? "" : ": ", why, ")");
  }
  if (by_replica) {
    if (has_hints) return "; shard(kShardHint, kShardHint) keeps everything, because pieces are shared out";
    return find_stage(*plan.pipeline(), reads_files) ? "; every worker goes through all files" : "";
  }
  if (!plan.shards.unshardable.empty()) return str("; rows instead of files, because ", plan.shards.unshardable);
  if (plan.policy == AutoShardPolicy::Hint && !has_hints)
    return "; every worker reads everything, because there is no shard(kShardHint, kShardHint)";
  return "";
}

/// Whether a stage computes elements even to skip them.
constexpr auto computes_all = [](const Stage& stage) {
  const StageTraits& traits = stage.traits();
  // A shuffle chooses among the numbers of elements if their count is known.
  return !traits.passes_over || (traits.is_shuffle() && !stage.input()->cardinality().is_known());
};

/// The first stage from the end that must compute other workers' rows in order to skip them; null if none.
const Stage* first_computing_all(const Stage& pipeline) {
  const Stage& batch = below_plain_stages(pipeline);
  return batch.traits().elements == StageTraits::Elements::Stacked ? find_stage(*batch.input(), computes_all) : &batch;
}

/// Whether such elements have a tensor of more than one number.
bool has_features(const ElementSpec& spec) {
  return !spec.components || std::ranges::any_of(*spec.components, [](const ComponentSpec& component) {
    return component.kind == ComponentSpec::Kind::Tensor &&
           !(component.shape.has_rank() && component.shape.rank() == 0);
  });
}

/// Whether elements are single rows of a source, as far as stages declare. `mapped`: a function processes them; given a
/// number or a name, it may return a batch. For functions that return datasets, uses what `look` found: nothing by
/// replica.
bool gives_single_rows(const Stage& stage, const FunctionProbe& look, bool mapped = false) {
  using Rows = StageTraits::Rows;
  const StageTraits traits = stage.traits();
  if (traits.rows == Rows::Many) return false;
  if (traits.source == StageTraits::Source::Function) {
    const StagePtr made = look.made_by(stage);
    return made && gives_single_rows(*made, look, mapped);
  }
  if (traits.rows == Rows::One)
    return !mapped || traits.source == StageTraits::Source::Files || has_features(stage.element_spec());
  mapped = mapped || traits.elements == StageTraits::Elements::Mapped;
  return !stage.inputs().empty() && std::ranges::all_of(stage.inputs(), [&](const StagePtr& input) {
    return gives_single_rows(*input, look, mapped);
  });
}

void check_depth(const Stage& dataset) {
  // Plans read and rewrite trees of stages by recursion; twice as many stages still fit into a stack of 8 MB.
  constexpr std::int64_t kDeepest = 4000;
  if (dataset.depth() <= kDeepest) return;
  throw InvalidArgument(errors::kSharding,
                        {.what = str("a dataset to distribute must have at most ", kDeepest,
                                     " stages on top of each other, got ", dataset.depth()),
                         .where = "distribute",
                         .help = "join many datasets with one flat_map or interleave (over a dataset of their numbers "
                                 "or names), or concatenate them in pairs and the pairs again, not in a chain"});
}

/// The steps of a balanced stream of this many rows.
Cardinality steps_of_stream(const InputPlan& plan, std::int64_t rows) {
  const ClusterShape& cluster = plan.cluster;
  const std::int64_t full = rows / plan.global_batch_size, rest = rows % plan.global_batch_size;
  // Every worker cuts all rows, by its own cycle; the steps last until the last worker has its last piece.
  std::int64_t last = 0;
  for (int worker = 0; worker < cluster.workers; ++worker) {
    const auto sizes = balanced_sizes(plan.global_batch_size, {cluster.workers, cluster.replicas_per_worker, worker});
    const std::int64_t pieces = std::ssize(pieces_of_stream(rest, sizes));
    const std::int64_t part_of_step = plan.partial_steps ? cluster.replicas_per_worker - 1 : 0;
    last = std::max(last, (pieces + part_of_step) / cluster.replicas_per_worker);
  }
  return full * cluster.workers + last;
}

}  // namespace

Cardinality InputPlan::steps() const {
  const Cardinality all = pipeline()->cardinality();
  if (all.is_infinite()) return all;
  const bool shares = stream && cluster.workers > 1;
  if (shares && (shards.by == AutoShardPolicy::File || shards.by == AutoShardPolicy::Hint))
    return Cardinality::unknown();  // the other workers' parts are unknown here
  if (split.rule == SplitRule::BalancedStream) {
    const Cardinality rows = pipeline()->total_rows();
    return rows.is_known() && global_batch_size > 0 ? steps_of_stream(*this, rows.value()) : Cardinality::unknown();
  }
  // A batch has a piece for every replica and makes one step if pieces are shared; otherwise each worker deals all of
  // them.
  const bool deals_all = shares && shards.by == AutoShardPolicy::Off;
  return multiplied(pipeline()->cardinality_if(Reliability::Promised), deals_all ? cluster.workers : 1);
}

std::unique_ptr<StepSource> InputPlan::make_source(const IterationContext& context) const {
  if (stream) return whole_elements({stream}, cluster.replicas_per_worker, context);
  return own_pieces(pipeline(), split, context);
}

std::string InputPlan::fingerprint() const {
  const std::string common =
      str(to_string(assignment), ", ", to_string(split.rule), " over ", cluster.replicas(), " replicas");
  if (!stream) return str(common, "\n", data::fingerprint(*pipeline()));
  return str(common, ", worker ", cluster.worker, " of ", cluster.workers, "\n", data::fingerprint(*stream));
}

InputPlan plan_input(const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment,
                     const ClusterShape& cluster, TooFew too_few) {
  check(cluster);
  check_depth(*dataset);
  InputPlan plan{.cluster = cluster, .assignment = assignment, .policy = policy};
  const bool by_replica = assignment == Assignment::ByReplica;

  plan.cardinality = dataset->cardinality();
  const ElementSpec spec = dataset->element_spec();
  if (cluster.replicas() > 1) {
    plan.global_batch_size = global_batch_size_of(*dataset);
    require_rows(spec, "distribute", kHelpForDistribute);  // rows that belong together go to the same replica
  }
  FunctionProbe look;
  plan.shards = by_replica ? plan_without_shards(dataset, policy, cluster.workers)
                           : plan_shards(dataset, policy, cluster, too_few, look);

  const SplitRule tensorflows = choose_split(plan.shards.by, plan.global_batch_size, cluster.replicas());
  plan.split = {.rule = by_replica && tensorflows != SplitRule::None ? SplitRule::Even : tensorflows,
                .cluster = cluster};
  if (const StageTraits batch = below_plain_stages(*plan.pipeline()).traits();
      batch.elements == StageTraits::Elements::Stacked) {
    plan.split.drop_remainder = batch.drop_remainder;
    plan.split.batch = batch.batch_size;
  }
  plan.has_single_rows = plan.split.rule != SplitRule::None && gives_single_rows(*dataset, look);
  // By replica, each worker reads what a single worker with all replicas would.
  plan.partial_steps = handles_partial_steps(spec, plan.cardinality.is_infinite(), by_replica ? 1 : cluster.workers);
  if (by_replica) {
    plan.element_spec = cluster.replicas() == 1 ? spec : spec.ceil_split(cluster.replicas());
    return plan;
  }
  plan.element_spec = distributed_spec(spec, plan.global_batch_size, cluster, plan.partial_steps);
  plan.stream = make_stream(plan, too_few);
  if (cluster.workers > 1 && (plan.shards.by == AutoShardPolicy::File || plan.shards.by == AutoShardPolicy::Hint))
    plan.everything = plan_shards(dataset, policy, {1, 1, 0}, too_few, look).pipeline;
  return plan;
}

std::int64_t global_batch_size_of(const Stage& dataset) {
  const std::int64_t by_spec = batch_size_by_spec(dataset.element_spec());
  return by_spec == kAskStages ? find_batch_size(dataset) : by_spec;
}

std::string to_string(const InputPlan& plan) {
  std::string text =
      str(counted(plan.cluster.workers, "worker"), " of ", counted(plan.cluster.replicas_per_worker, "replica"));
  if (plan.split.rule == SplitRule::None) {
    text += ", batches as they are";
  } else {
    text += plan.global_batch_size == kUnknownBatchSize ? ", batches of unknown size"
                                                        : str(", batches of ", plan.global_batch_size);
    text += str(", ", to_string(plan.split.rule));
  }
  text += reason_of(plan) + '\n';
  ClusterShape cluster = plan.cluster;
  for (cluster.worker = 0; cluster.worker < cluster.workers; ++cluster.worker)
    text += str("worker ", cluster.worker, " of ", cluster.workers, ": ", share_of_worker(plan, cluster), '\n');
  return text;
}

std::optional<std::string> fallback_warning(const InputPlan& plan) {
  const int workers = plan.cluster.workers;
  if (workers == 1) return std::nullopt;
  if (plan.assignment == Assignment::ByReplica &&
      (plan.policy == AutoShardPolicy::Off || plan.policy == AutoShardPolicy::File)) {
    return str("distribute: AutoShardPolicy::", plan.policy == AutoShardPolicy::Off ? "Off" : "File",
               " has no effect, because Assignment::ByReplica gives each replica its piece of every batch. For ",
               plan.policy == AutoShardPolicy::Off ? "every row on every worker" : "files of its own on every worker",
               " write distribute(dataset, {.assignment = Assignment::TensorFlow}), or use distribute_from_function.");
  }
  const bool has_no_hint = plan.policy == AutoShardPolicy::Hint && plan.shards.by == AutoShardPolicy::Off;
  if (has_no_hint && plan.assignment == Assignment::TensorFlow) {
    return str(
        "distribute: AutoShardPolicy::Hint shares out nothing, because the dataset has no "
        "shard(kShardHint, kShardHint). Each of the ",
        workers,
        " workers gets every row. Put such a shard where the rows should be divided, or choose "
        "AutoShardPolicy::Off if this is intended.");
  }
  if (plan.assignment == Assignment::TensorFlow && plan.shards.by == AutoShardPolicy::File) {
    if (!std::ranges::any_of(plan.shards.shared, [](const SharedOut& shared) { return !shared.files; }))
      return std::nullopt;
    return str(
        "distribute: rows of files are shared out instead of the files, because a flat_map or interleave behind the "
        "reader gets them, as by TensorFlow's rule for functions of functions. Each of the ",
        workers, " workers reads all files and keeps 1/", workers,
        " of their rows. Use map and unbatch in place of that function, or let each worker read its own files with "
        "distribute_from_function.");
  }
  if (plan.policy != AutoShardPolicy::Auto || plan.shards.unshardable.empty()) return std::nullopt;
  std::string reason = plan.shards.unshardable;
  if (plan.assignment == Assignment::ByReplica) {
    const Stage* stage = first_computing_all(*plan.pipeline());
    if (stage == nullptr) return std::nullopt;  // other workers' rows are skipped at no cost
    reason += str(", and ", stage->kind(), " cannot pass over the rows of other workers without computing them");
  }
  return str("distribute: rows are shared out instead of files, because ", reason, ". Each of the ", workers,
             " workers reads and computes the whole dataset and keeps 1/", workers,
             " of it. Choose AutoShardPolicy::Data if this is intended, or let each worker read its own part "
             "with distribute_from_function.");
}

ElementSpec distributed_spec(const ElementSpec& dataset, std::int64_t global_batch_size, const ClusterShape& cluster,
                             bool partial_steps) {
  if (cluster.workers > 1 && partial_steps) return dataset.with_rows(PartialShape::kUnknown);
  if (cluster.replicas() == 1) return dataset;
  if (global_batch_size == kUnknownBatchSize) return dataset.ceil_split(cluster.replicas());
  return dataset.rebatched(balanced_sizes(global_batch_size, cluster));
}

bool handles_partial_steps(const ElementSpec& dataset, bool is_infinite, int workers) {
  if (is_infinite) return false;
  return workers > 1 || !dataset.components ||
         !std::ranges::all_of(*dataset.components,
                              [](const ComponentSpec& component) { return component.shape.is_fully_defined(); });
}

std::int64_t batch_size_by_spec(const ElementSpec& dataset) {
  if (!dataset.components) return kAskStages;
  require_dimensions(dataset, "distribute", kHelpForDistribute);
  const std::vector<ComponentSpec>& all = *dataset.components;
  const auto rows = [](const ComponentSpec& component) { return component.shape.rows(); };
  if (all.empty() || std::ranges::find(all, PartialShape::kUnknown, rows) != all.end()) return kAskStages;
  return std::ranges::count(all, rows(all.front()), rows) == std::ssize(all) ? rows(all.front()) : kUnknownBatchSize;
}

}  // namespace lockstep::data
