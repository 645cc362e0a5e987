#include "lockstep/data/stages/batch_sizes.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "lockstep/data/pipeline.h"
#include "lockstep/data/stages/batching.h"

namespace lockstep::data {
namespace {

class CountedBatches final : public BatchingIterator<ElementIterator> {
 public:
  using BatchingIterator::BatchingIterator;

  bool next(Element& element) override {
    const std::int64_t rows = input_->skip(size_);
    if (!is_batch(rows)) return false;
    element = Element::of(at::scalar_tensor(rows, at::kLong));
    return true;
  }
};

constexpr const char* kBatchCounts = "batch_counts";

/// The numbers of rows of batches in place of the batches; the rows are skipped.
StagePtr make_batch_counts(StagePtr rows, const BatchShape& shape) {
  return make_stage({std::move(rows)}, {.kind = kBatchCounts,
                                        .cardinality =
                                            [shape](const Stage& below) {
                                              return batched(below.cardinality(), shape.size, shape.drop_remainder);
                                            },
                                        .spec = [](const Stage&) { return ElementSpec::unknown(1); },
                                        .iterate = over_input<CountedBatches>(shape)});
}

/// The numbers of rows of cached batches, in the order of the pass that fills the cache.
StagePtr make_cached_counts(StagePtr counts, const Stage& cache) {
  return make_stage({std::move(counts)}, {.kind = "cached_counts",
                                          .traits = cache.traits(),
                                          .iterate = [kept = cache.description().pass_state](
                                                         const Stage& below, const IterationContext& context) {
                                            return below.iterate(kept->first_pass(context));
                                          }});
}

StagePtr counts_of(const Stage& stage) {
  using Elements = StageTraits::Elements;
  const StageTraits traits = stage.traits();
  if (traits.batch_size > 0) return make_batch_counts(stage.input(), {traits.batch_size, traits.drop_remainder});
  if (traits.elements == Elements::New || traits.elements == Elements::Mapped ||
      traits.elements == Elements::Filtered || traits.elements == Elements::Zipped)
    return nullptr;
  std::vector<StagePtr> inputs;
  for (const StagePtr& input : stage.inputs()) {
    inputs.push_back(counts_of(*input));
    if (!inputs.back()) return nullptr;
  }
  if (traits.cache != StageTraits::Cache::None) return make_cached_counts(std::move(inputs.front()), stage);
  if (traits.is_one_to_one()) return inputs.front();
  return stage.with_inputs(std::move(inputs));
}

bool has_cached_counts(const Stage& counts) {
  if (counts.kind() == kBatchCounts) return false;
  return counts.traits().cache != StageTraits::Cache::None ||
         std::ranges::any_of(counts.inputs(), [](const StagePtr& input) { return has_cached_counts(*input); });
}

bool only_last_short(const Stage& batches) {
  using Elements = StageTraits::Elements;
  const Stage* stage = &batches;
  StageTraits traits = stage->traits();
  while (traits.elements == Elements::Rewritten || traits.elements == Elements::Stretch || stage->identity().empty()) {
    stage = stage->input().get();
    traits = stage->traits();
  }
  return traits.batch_size > 0;
}

}  // namespace

std::int64_t find_batch_size(const Stage& stage) {
  const StageTraits traits = stage.traits();
  if (traits.makes_batches()) return traits.batch_size;
  if (traits.elements == StageTraits::Elements::New || traits.elements == StageTraits::Elements::Mapped) return -1;
  const std::int64_t first = find_batch_size(*stage.input());
  const auto same = [&](const StagePtr& input) { return find_batch_size(*input) == first; };
  return std::ranges::all_of(stage.inputs(), same) ? first : -1;
}

BatchSizes::BatchSizes(const Stage& batches, IterationContext context) : context_(std::move(context)) {
  if (const auto rows = rows_by_spec(batches.element_spec()); rows && *rows > 0) {
    usual_ = *rows;
    all_usual_ = only_last_short_ = true;
    return;
  }
  usual_ = std::max<std::int64_t>(find_batch_size(batches), 1);
  only_last_short_ = only_last_short(batches);
  // A second, parallel pass must yield the same rows.
  if (!find_position_obstacle(batches)) counts_ = counts_of(batches);
  counts_below_cache_ = counts_ && has_cached_counts(*counts_);
}

std::optional<std::int64_t> BatchSizes::at(std::int64_t place) {
  if (all_usual_) return usual_;
  if (!counts_) return std::nullopt;
  if (!reader_) reader_ = counts_->iterate(context_);
  if (place >= next_) {
    next_ += reader_->skip(place - next_);
    Element count;
    last_.reset();
    if (next_ == place && reader_->next(count)) {
      last_ = count.tensor(0).item().toLong();
      ++next_;
    }
  }
  return last_;
}

}  // namespace lockstep::data
