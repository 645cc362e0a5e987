#include "lockstep/data/distribute/batch_tally.h"

#include <algorithm>
#include <set>
#include <string>

#include "lockstep/data/distribute/split_stages.h"
#include "lockstep/data/files/reader_stage.h"
#include "lockstep/data/stages/batch.h"
#include "lockstep/data/stages/order.h"
#include "lockstep/data/stages/padded_batch.h"

namespace lockstep::data {
namespace {

using Kinds = std::set<std::string, std::less<>>;

// Stages behind which there are as many elements as before.
const Kinds kKeepsCount = {"map",   "parallel_map", "parse_example",      "prefetch",  "with_options",
                           "cache", "shuffle",      "assert_cardinality", "enumerate", "scan"};
// Stages behind which every batch is one of their input's, with as many rows and in its place.
const Kinds kKeepsBatches = {"prefetch", "with_options", "parse_example", "cache", "assert_cardinality"};

// A list of more runs is not made: nobody waits for a plan.
constexpr std::int64_t kMostRuns = 100'000;

/// Places `first`, `first + step`, ... of `tally`: all, or `count` of them.
std::optional<BatchTally> chosen(const BatchTally& tally, std::int64_t first, std::int64_t step,
                                 std::optional<std::int64_t> count) {
  const bool one_size =
      std::ranges::all_of(tally.runs, [&](const BatchRun& run) { return run.rows == tally.runs.front().rows; });
  if (!tally.in_order && !one_size) return std::nullopt;
  BatchTally result;
  if (tally.runs.empty()) return result;  // however often it is repeated
  std::int64_t next = first;              // counted from the start of the run
  for (std::int64_t time = 0; time < tally.times; ++time) {
    for (const BatchRun& run : tally.runs) {
      if (count == 0) return result;
      if (time > kMostRuns || std::ssize(result.runs) > kMostRuns) return std::nullopt;
      if (next >= run.batches) {
        next -= run.batches;
        continue;
      }
      const bool endless = run.batches == kEndless;
      std::int64_t own = (run.batches - next - 1) / step + 1;
      if (count) own = std::min(own, *count);
      result.runs.push_back({run.rows, endless && !count ? kEndless : own});
      if (endless) return result;
      if (count) *count -= own;
      // From the last one taken to the next, which may be further away than can be counted: then there is none.
      const std::int64_t last = next + (own - 1) * step;
      if (step > kEndless - last) return result;
      next = last + step - run.batches;
    }
  }
  return result;
}

bool has_required_shard(const Stage& stage) {
  return input_of_required_shard(stage) != nullptr ||
         std::ranges::any_of(stage.inputs(), [](const StagePtr& input) { return has_required_shard(*input); });
}

bool is_single_values(const ElementSpec& spec) {
  return spec.components && !spec.components->empty() &&
         std::ranges::all_of(*spec.components, [](const ComponentSpec& component) {
           return component.shape.has_rank() && component.shape.dims().empty();
         });
}

struct BatchShape {
  std::int64_t size = 0;
  bool drop_remainder = false;
};

std::optional<BatchShape> batch_shape(const Stage& stage) {
  if (const auto* batch = dynamic_cast<const BatchStage*>(&stage))
    return BatchShape{batch->batch_size(), batch->drop_remainder()};
  if (const auto* batch = dynamic_cast<const PaddedBatchStage*>(&stage))
    return BatchShape{batch->batch_size(), batch->drop_remainder()};
  return std::nullopt;
}

class Counter {
 public:
  explicit Counter(const TallyFor& what) : what_(what) {}

  std::optional<BatchTally> tally(const Stage& stage) const {
    if (kKeepsBatches.contains(stage.kind())) return tally(*stage.input());
    if (const auto shape = batch_shape(stage)) return batches_of(*shape, elements(*stage.input()));
    if (stage.kind() == "concatenate") return joined(tally(*stage.inputs()[0]), tally(*stage.inputs()[1]));
    if (!is_order(stage)) return by_spec(stage);
    auto below = tally(*stage.input());
    if (!below) return std::nullopt;
    if (stage.kind() == "shuffle") {
      below->in_order = false;
      return below;
    }
    if (const auto* repeat = dynamic_cast<const RepeatStage*>(&stage)) return repeated_tally(*below, repeat->count());
    if (const auto* counted = dynamic_cast<const CountedStage*>(&stage)) {
      const std::int64_t count = counted->count();
      if (stage.kind() == "take") return chosen(*below, 0, 1, count < 0 ? std::nullopt : std::optional(count));
      return chosen(*below, count < 0 ? kEndless : count, 1, std::nullopt);
    }
    const auto [shards, index] = shard_of(stage);
    return chosen(*below, index, shards, std::nullopt);
  }

  /// How many elements a stage gives. What a stage itself says holds for the worker that the shards of the plan are
  /// for.
  Cardinality elements(const Stage& stage) const {
    if (dynamic_cast<const FileReaderStage*>(&stage)) return records(stage);
    // What the user promises is believed.
    if ((stage.kind() == "assert_cardinality" || stage.kind() == "from_generator") && !has_required_shard(stage))
      return stage.cardinality();
    if (kKeepsCount.contains(stage.kind())) return elements(*stage.input());
    if (const auto shape = batch_shape(stage))
      return batched(elements(*stage.input()), shape->size, shape->drop_remainder);
    if (stage.kind() == "concatenate") return concatenated(elements(*stage.inputs()[0]), elements(*stage.inputs()[1]));
    if (stage.kind() == "zip") {
      Cardinality all = Cardinality::infinite();
      for (const StagePtr& input : stage.inputs()) all = zipped(all, elements(*input));
      return all;
    }
    if (stage.kind() == "unbatch") {
      const auto rows = rows_by_spec(stage.input()->element_spec());
      return rows ? multiplied(elements(*stage.input()), *rows) : Cardinality::unknown();
    }
    if (!is_order(stage)) return has_required_shard(stage) ? Cardinality::unknown() : stage.certain_cardinality();
    const Cardinality below = elements(*stage.input());
    if (const auto* repeat = dynamic_cast<const RepeatStage*>(&stage)) {
      // There may be nothing to repeat.
      return below.is_unknown() && repeat->count() != 0 ? below : repeated(below, repeat->count());
    }
    if (const auto* counted = dynamic_cast<const CountedStage*>(&stage))
      return stage.kind() == "take" ? taken(below, counted->count()) : skipped(below, counted->count());
    if (stage.kind() == "shuffle") return below;
    const auto [shards, index] = shard_of(stage);
    return sharded(below, shards, index);
  }

 private:
  static bool is_order(const Stage& stage) {
    const auto* shard = dynamic_cast<const ShardStage*>(&stage);
    if (shard) return !shard->is_hint();
    return stage.kind() == "shuffle" || dynamic_cast<const CountedStage*>(&stage) || input_of_required_shard(stage);
  }

  /// The number of shards, and which one.
  std::pair<std::int64_t, std::int64_t> shard_of(const Stage& stage) const {
    if (const auto* shard = dynamic_cast<const ShardStage*>(&stage)) return {shard->shards(), shard->index()};
    return {shards_of_required_shard(stage), shards_of_required_shard(stage) > 1 ? what_.worker : 0};
  }

  std::optional<BatchTally> by_spec(const Stage& stage) const {
    const ElementSpec spec = stage.element_spec();
    const auto rows = is_single_values(spec) ? std::optional<std::int64_t>(1) : rows_by_spec(spec);
    const Cardinality batches = rows ? elements(stage) : Cardinality::unknown();
    if (batches.is_unknown()) return std::nullopt;
    return BatchTally{.runs = {{*rows, batches.is_infinite() ? kEndless : batches.value()}}};
  }

  static std::optional<BatchTally> batches_of(const BatchShape& shape, Cardinality rows) {
    if (rows.is_unknown()) return std::nullopt;
    if (rows.is_infinite()) return BatchTally{.runs = {{shape.size, kEndless}}};
    BatchTally tally{.runs = {{shape.size, rows.value() / shape.size}}};
    const std::int64_t rest = rows.value() % shape.size;
    if (rest > 0 && !shape.drop_remainder) tally.runs.push_back({rest, 1});
    return tally;
  }

  static std::optional<BatchTally> joined(std::optional<BatchTally> a, const std::optional<BatchTally>& b) {
    if (!a || !b) return std::nullopt;
    if (a->is_endless()) return a;
    const auto first = chosen({a->runs, a->times}, 0, 1, std::nullopt);
    const auto second = chosen({b->runs, b->times}, 0, 1, std::nullopt);
    if (!first || !second) return std::nullopt;
    BatchTally both{.runs = first->runs, .in_order = a->in_order && b->in_order};
    both.runs.insert(both.runs.end(), second->runs.begin(), second->runs.end());
    return both;
  }

  static BatchTally repeated_tally(BatchTally tally, std::int64_t count) {
    if (count == 0) return {};
    const bool endless = tally.is_endless() || (count < 0 && tally.batches() != Cardinality(0));
    if (!endless) tally.times = multiplied(tally.times, std::max<std::int64_t>(count, 0)).value();
    if (endless || tally.times < 0) tally.times = kEndless;
    return tally;
  }

  /// Of the worker's files.
  Cardinality records(const Stage& reader) const {
    if (!what_.files || !what_.files->contains(&reader)) return Cardinality::unknown();
    const Stage* names = reader.input().get();
    while (names->kind() == "shuffle") names = names->input().get();
    std::int64_t shards = 1;
    if (const Stage* all = input_of_required_shard(*names)) {
      shards = shards_of_required_shard(*names);
      names = all;
    }
    if (has_required_shard(*names)) return Cardinality::unknown();
    const std::vector<std::int64_t>& rows = what_.files->at(&reader);
    std::int64_t sum = 0;
    for (std::int64_t i = shards > 1 ? what_.worker : 0; i < std::ssize(rows); i += shards)
      sum += rows[static_cast<std::size_t>(i)];
    return sum;
  }

  const TallyFor& what_;
};

}  // namespace

bool BatchTally::is_endless() const {
  return std::ranges::any_of(runs, [](const BatchRun& run) { return run.batches == kEndless; }) ||
         (times == kEndless && !runs.empty());
}

Cardinality BatchTally::rows() const {
  if (is_endless()) return Cardinality::infinite();
  Cardinality once = 0;
  for (const BatchRun& run : runs) once = concatenated(once, multiplied(run.batches, run.rows));
  return multiplied(once, times);
}

Cardinality BatchTally::batches() const {
  if (is_endless()) return Cardinality::infinite();
  Cardinality once = 0;
  for (const BatchRun& run : runs) once = concatenated(once, run.batches);
  return multiplied(once, times);
}

std::optional<BatchTally> tally_batches(const Stage& batches, const TallyFor& what) {
  return Counter(what).tally(batches);
}

Cardinality count_elements(const Stage& elements, const TallyFor& what) { return Counter(what).elements(elements); }

std::optional<std::int64_t> rows_by_spec(const ElementSpec& spec) {
  if (!spec.components || spec.components->empty()) return std::nullopt;
  std::optional<std::int64_t> rows;
  for (const ComponentSpec& component : *spec.components) {
    if (!component.shape.has_rank() || component.shape.dims().empty()) return std::nullopt;
    const std::int64_t mine = component.shape.dims().front();
    if (mine == PartialShape::kUnknown || mine != rows.value_or(mine)) return std::nullopt;
    rows = mine;
  }
  return rows;
}

}  // namespace lockstep::data
