#include "lockstep/data/distribute/worker_shards.h"

#include <utility>

#include "lockstep/data/pipeline.h"
#include "lockstep/data/stages/look_ahead.h"
#include "lockstep/data/stages/order.h"

namespace lockstep::data {
namespace {

using Source = StageTraits::Source;

constexpr const char* kWhere = "distribute, auto-shard policy ";

/// The shared input. Before the first element it checks that there is one for each worker.
class EnoughForAll final : public LookAhead {
 public:
  EnoughForAll(IteratorPtr input, int shards, int index, TooFew too_few)
      : LookAhead(std::move(input)), shards_(shards), index_(index), too_few_(too_few) {}

  bool next(Element& element) override {
    check();
    return LookAhead::next(element);
  }
  std::int64_t skip(std::int64_t count) override {
    check();
    return LookAhead::skip(count);
  }
  // A pass has been checked once its first elements were read: later, fewer elements than workers may rightly remain.
  // Before that, it is checked from its beginning.
  void locate(std::int64_t consumed, Position& position) const override {
    const bool is_checked = consumed >= shards_;
    position.push(is_checked ? -1 : consumed);
    if (is_checked) LookAhead::locate(consumed, position);
  }
  void restore(Position& position) override {
    const std::int64_t unchecked = position.pop();
    checked_ = unchecked < 0;
    if (checked_)
      LookAhead::restore(position);
    else if (unchecked > 0)
      skip(unchecked);
  }

 private:
  void check() {
    if (std::exchange(checked_, true)) return;
    const std::int64_t elements = look(shards_, index_, index_ + 1);
    const bool is_seen = elements > index_ || too_few_ == TooFew::FailsOnEveryWorker;
    if (elements == 0 || elements == shards_ || !is_seen) return;
    throw InvalidArgument(
        errors::kTooFewElements,
        {.what = str("there are not enough files or elements for ", counted(shards_, "worker")),
         .where = str("shard ", index_, " of ", shards_),
         .seen = str(counted(elements, "element"), " to share out"),
         .help = "switch sharding off with AutoShardPolicy::Off, or share out rows with AutoShardPolicy::Data"});
  }

  std::int64_t shards_;
  std::int64_t index_;
  TooFew too_few_;
  bool checked_ = false;
};

std::optional<std::int64_t> known_count(const Stage& stage) {
  const Cardinality count = stage.cardinality();
  return count.is_known() ? std::optional(count.value()) : std::nullopt;
}

/// Why the stages at the bottom of a pipeline declare no files, so that `File` cannot share it; empty if they do, or if
/// a function makes the datasets that are read.
std::string why_without_files(const Stage& stage) {
  switch (stage.traits().source) {
    case Source::Unknown: return str(stage.kind(), " cannot be looked through for files");
    case Source::Memory:
    case Source::List: return str(stage.kind(), " has no files");
    case Source::Files:
    case Source::Function: return "";
    case Source::Inputs: break;
  }
  std::string why;
  for (const StagePtr& input : stage.inputs())
    if (why = why_without_files(*input); !why.empty()) break;
  return why;
}

/// Inserts shard(workers, worker) into a pipeline: to give every worker its own files, or in place of hints.
class Sharder {
 public:
  Sharder(const ClusterShape& cluster, TooFew too_few, FunctionProbe& look)
      : cluster_(cluster), too_few_(too_few), look_(look) {}

  /// The pipeline of one worker, with shards in place of hints. `names_files`: the stage above, ignoring shuffles,
  /// reads the files that this one names.
  StagePtr fill_hints(const StagePtr& stage, bool names_files = false) {
    const StageTraits traits = stage->traits();
    if (traits.is_shard_hint) {
      shared.push_back({names_files, known_count(*stage->input())});
      const std::size_t outer = shared.size();
      StagePtr input = fill_hints(stage->input());
      shared.resize(outer);  // a shard within a shard divides nothing of its own
      return own_shard(std::move(input));
    }
    std::vector<StagePtr> inputs;
    for (const StagePtr& input : stage->inputs())
      inputs.push_back(fill_hints(input, traits.is_shuffle() ? names_files : traits.source == Source::Files));
    if (inputs == stage->inputs()) return stage;
    return on(*stage, std::move(inputs));
  }

  /// The pipeline of one worker with its own files; null if there are none to share, see `why`.
  StagePtr shard_files(const StagePtr& stage) {
    const StageTraits traits = stage->traits();
    if (traits.asserts_count) {
      removed.emplace_back(stage->kind());
      return shard_files(stage->input());
    }
    switch (traits.source) {
      case Source::Unknown:
      case Source::Memory:
      case Source::List: return fail(why_without_files(*stage));
      case Source::Files: return with_shard_below(*stage, true);
      case Source::Function: return apply_to_function(stage);
      case Source::Inputs: break;
    }
    std::vector<StagePtr> inputs;
    for (const StagePtr& input : stage->inputs()) {
      inputs.push_back(shard_files(input));
      if (!inputs.back()) return nullptr;
    }
    return on(*stage, std::move(inputs));
  }

  std::string why;
  std::vector<SharedOut> shared;
  std::vector<std::string> removed;

 private:
  StagePtr fail(std::string reason) {
    why = std::move(reason);
    return nullptr;
  }

  StagePtr own_shard(StagePtr input) const {
    return make_required_shard(std::move(input), cluster_.workers, cluster_.worker, too_few_);
  }

  StagePtr on(const Stage& stage, std::vector<StagePtr> inputs) const {
    return stage.with_inputs(std::move(inputs), cluster_.workers, cluster_.worker);
  }

  StagePtr apply_to_function(const StagePtr& function) {
    if (StagePtr shared_inside = share_inner_function(*function, *function)) return shared_inside;
    const FunctionProbe::Seen& seen = look_.at(*function);
    if (seen.reads_files) return with_shard_below(*function, true);
    if (StagePtr input = shard_files(function->input())) return on(*function, {std::move(input)});
    if (seen.obstacle.empty()) return nullptr;
    return fail(str("whether the function of ", function->kind(), " reads files cannot be seen without running ",
                    seen.obstacle));
  }

  /// For `outer < (stages of one input) < function < list`: shares the elements of the inner function or reader rather
  /// than the list. Null unless `consumer`, the outer function or a stage below it, is such a pipeline.
  StagePtr share_inner_function(const Stage& consumer, const Stage& outer) {
    const StagePtr& below = consumer.input();
    const StageTraits traits = below->traits();
    const bool makes_elements = traits.source == Source::Function || traits.source == Source::Files;
    if (makes_elements && below->input()->traits().source == Source::List)
      return with_shard_below(consumer, &consumer == &outer && look_.at(outer).reads_files);
    if (traits.source != Source::Inputs || traits.asserts_count || below->inputs().size() != 1) return nullptr;
    StagePtr inner = share_inner_function(*below, outer);
    return inner ? on(consumer, {std::move(inner)}) : nullptr;
  }

  /// A shuffle before the shard would give the workers different files only by chance; after it each shuffles its own.
  StagePtr with_shard_below(const Stage& stage, bool files) {
    std::vector<StagePtr> shuffles;
    StagePtr input = without_stages(stage.input(), [&](const Stage& each) {
      if (each.traits().is_shuffle()) shuffles.push_back(each.shared_from_this());
      return each.traits().is_shuffle();
    });
    shared.push_back({files, known_count(*input)});
    input = own_shard(std::move(input));
    for (auto shuffle = shuffles.rbegin(); shuffle != shuffles.rend(); ++shuffle)
      input = (*shuffle)->with_inputs({std::move(input)});
    return on(stage, {std::move(input)});
  }

  const ClusterShape cluster_;
  TooFew too_few_;
  FunctionProbe& look_;
};

bool has_shard_hint(const Stage& pipeline) {
  return find_stage(pipeline, [](const Stage& stage) { return stage.traits().is_shard_hint; }) != nullptr;
}

/// Removes the assertions on the path to the files.
StagePtr without_assertions(const StagePtr& stage, FunctionProbe& look, std::vector<std::string>& removed) {
  const StageTraits traits = stage->traits();
  if (traits.asserts_count) {
    removed.emplace_back(stage->kind());
    return without_assertions(stage->input(), look, removed);
  }
  const bool goes_on =
      traits.source == Source::Inputs || (traits.source == Source::Function && !look.at(*stage).reads_files);
  if (!goes_on) return stage;
  return with_changed_inputs(stage, [&](const StagePtr& input) { return without_assertions(input, look, removed); });
}

void check_enough(const ShardPlan& plan, int workers) {
  for (const SharedOut& shared : plan.shared) {
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

void refuse_hints(const Stage& pipeline, AutoShardPolicy policy) {
  if (policy == AutoShardPolicy::Hint || !has_shard_hint(pipeline)) return;
  throw FailedPrecondition(
      errors::kSharding,
      {.what = "shard(kShardHint, kShardHint) requires AutoShardPolicy::Hint",
       .where = str(kWhere, lockstep::to_string(policy)),
       .help = "choose AutoShardPolicy::Hint in the dataset's with_options, or give numbers to shard"});
}

[[noreturn]] void throw_no_files(const std::string& why) {
  throw NotFound(
      errors::kSharding,
      {.what = "the dataset cannot be shared out by file",
       .where = str(kWhere, "FILE"),
       .seen = why,
       .help = "share out rows with AutoShardPolicy::Data, read the files through a dataset of their names, or make "
               "each worker's pipeline yourself with distribute_from_function"});
}

}  // namespace

StagePtr make_required_shard(StagePtr input, int shards, int index, TooFew too_few) {
  return make_stage({std::move(input)},
                    {.kind = "shard",
                     .text = str("shard(", shards, ", ", index, ", one for each at least)"),
                     .traits = StageTraits::passing_over(StageTraits::Elements::Picked),
                     .cardinality = [=](const Stage& below) { return sharded(below.cardinality(), shards, index); },
                     .iterate =
                         [=](const Stage& below, const IterationContext& context) {
                           auto all = std::make_unique<EnoughForAll>(below.iterate(context), shards, index, too_few);
                           return take_shard(std::move(all), shards, index);
                         }});
}

ShardPlan plan_shards(const StagePtr& pipeline, AutoShardPolicy policy, const ClusterShape& cluster, TooFew too_few,
                      FunctionProbe& look) {
  check(cluster);
  refuse_hints(*pipeline, policy);
  lockstep::to_string(policy);  // throws for an invalid policy
  ShardPlan plan{.by = policy, .pipeline = pipeline};
  Sharder sharder(cluster, too_few, look);
  if (policy == AutoShardPolicy::Hint) {
    plan.pipeline = sharder.fill_hints(pipeline);
    // Without a hint to fill in, every worker reads everything.
    if (plan.pipeline == pipeline) plan.by = AutoShardPolicy::Off;
  } else if (policy == AutoShardPolicy::Auto || (policy == AutoShardPolicy::File && cluster.workers > 1)) {
    StagePtr shared = sharder.shard_files(pipeline);
    if (!shared && policy == AutoShardPolicy::File) throw_no_files(sharder.why);
    plan.by = shared ? AutoShardPolicy::File : AutoShardPolicy::Data;
    if (shared && cluster.workers > 1) {
      plan.pipeline = std::move(shared);
      plan.removed = std::move(sharder.removed);
    } else {
      // A single worker shares nothing, and without files every worker reads everything.
      sharder.shared.clear();
      plan.pipeline = without_assertions(pipeline, look, plan.removed);
      plan.unshardable = shared ? "" : sharder.why;
    }
  }
  plan.shared = std::move(sharder.shared);
  if (too_few == TooFew::FailsOnEveryWorker) check_enough(plan, cluster.workers);
  return plan;
}

ShardPlan plan_shards(const StagePtr& pipeline, AutoShardPolicy policy, const ClusterShape& cluster, TooFew too_few) {
  FunctionProbe look;
  return plan_shards(pipeline, policy, cluster, too_few, look);
}

ShardPlan plan_without_shards(const StagePtr& pipeline, AutoShardPolicy policy, int workers) {
  refuse_hints(*pipeline, policy);
  lockstep::to_string(policy);  // throws for an invalid policy
  ShardPlan plan{.pipeline = pipeline, .unshardable = why_without_files(*pipeline)};
  if (policy == AutoShardPolicy::File && workers > 1 && !plan.unshardable.empty()) throw_no_files(plan.unshardable);
  if (policy == AutoShardPolicy::Hint) {
    FunctionProbe look;  // not needed to fill in hints
    plan.pipeline = Sharder({1, 1, 0}, TooFew::FailsWhereSeen, look).fill_hints(pipeline);
    if (plan.pipeline != pipeline) plan.by = AutoShardPolicy::Hint;
  }
  return plan;
}

AutoShardPolicy policy_of(const Stage& pipeline) {
  // The options nearest to the end win; with several inputs, the last input's.
  std::vector<const Stage*> waiting{&pipeline};
  while (!waiting.empty()) {
    const Stage* stage = waiting.back();
    waiting.pop_back();
    if (const auto policy = stage->traits().policy) return *policy;
    for (const StagePtr& input : stage->inputs()) waiting.push_back(input.get());
  }
  return AutoShardPolicy::Auto;
}

}  // namespace lockstep::data
