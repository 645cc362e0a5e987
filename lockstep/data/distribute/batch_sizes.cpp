#include "lockstep/data/distribute/batch_sizes.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <set>
#include <string>

#include "lockstep/data/distribute/batch_tally.h"
#include "lockstep/data/distribute/describe.h"
#include "lockstep/data/stages/batch.h"
#include "lockstep/data/stages/batching.h"
#include "lockstep/data/stages/cache.h"
#include "lockstep/data/stages/padded_batch.h"

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

/// The numbers of rows of batches in place of the batches: the rows are passed over.
class BatchCountsStage final : public Stage {
 public:
  BatchCountsStage(StagePtr rows, std::int64_t size, bool drop_remainder)
      : Stage({std::move(rows)}), size_(size), drop_remainder_(drop_remainder) {}

  std::string_view kind() const override { return "batch_counts"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override {
    return std::make_shared<BatchCountsStage>(std::move(inputs.at(0)), size_, drop_remainder_);
  }
  Cardinality cardinality() const override { return batched(input()->cardinality(), size_, drop_remainder_); }
  ElementSpec element_spec() const override { return ElementSpec::unknown(1); }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<CountedBatches>(input()->iterate(context), size_, drop_remainder_);
  }

 private:
  std::int64_t size_;
  bool drop_remainder_;
};

/// The numbers of rows of batches that are put into a cache, in the order of the pass that fills it.
class CachedCountsStage final : public PassThroughStage {
 public:
  CachedCountsStage(StagePtr counts, std::shared_ptr<const CacheStage> cache)
      : PassThroughStage({std::move(counts)}), cache_(std::move(cache)) {}

  std::string_view kind() const override { return "cached_counts"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override {
    return std::make_shared<CachedCountsStage>(std::move(inputs.at(0)), cache_);
  }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return input()->iterate(cache_->first_pass(context));
  }

 private:
  std::shared_ptr<const CacheStage> cache_;
};

// Stages behind which every batch is one of their input's, with as many rows.
const std::set<std::string, std::less<>> kKeepsBatches = {"prefetch", "with_options", "parse_example"};
// Those that choose and order batches without looking at them.
const std::set<std::string, std::less<>> kChoosesBatches = {
    "repeat", "take", "skip", "shard", "concatenate", "assert_cardinality", "shuffle"};

StagePtr counts_of(const Stage& stage) {
  if (const auto* batch = dynamic_cast<const BatchStage*>(&stage))
    return std::make_shared<BatchCountsStage>(batch->input(), batch->batch_size(), batch->drop_remainder());
  if (const auto* batch = dynamic_cast<const PaddedBatchStage*>(&stage))
    return std::make_shared<BatchCountsStage>(batch->input(), batch->batch_size(), batch->drop_remainder());
  if (kKeepsBatches.contains(stage.kind())) return counts_of(*stage.input());
  if (const auto* cache = dynamic_cast<const CacheStage*>(&stage)) {
    StagePtr counts = counts_of(*cache->input());
    if (!counts) return nullptr;
    return std::make_shared<CachedCountsStage>(std::move(counts),
                                               std::static_pointer_cast<const CacheStage>(cache->shared_from_this()));
  }
  if (!kChoosesBatches.contains(stage.kind())) return nullptr;
  std::vector<StagePtr> inputs;
  for (const StagePtr& input : stage.inputs()) {
    inputs.push_back(counts_of(*input));
    if (!inputs.back()) return nullptr;
  }
  return stage.with_inputs(std::move(inputs));
}

bool has_cached_counts(const Stage& counts) {
  if (counts.kind() == "batch_counts") return false;
  return counts.kind() == "cached_counts" ||
         std::ranges::any_of(counts.inputs(), [](const StagePtr& input) { return has_cached_counts(*input); });
}

bool only_last_short(const Stage& batches) {
  const Stage* stage = &batches;
  while (kKeepsBatches.contains(stage->kind()) || stage->kind() == "take" || stage->kind() == "skip")
    stage = stage->input().get();
  return dynamic_cast<const BatchStage*>(stage) || dynamic_cast<const PaddedBatchStage*>(stage);
}

}  // namespace

BatchSizes batch_sizes_of(const Stage& batches) {
  BatchSizes sizes;
  if (const auto rows = rows_by_spec(batches.element_spec()); rows && *rows > 0) {
    sizes.usual = *rows;
    sizes.all_usual = sizes.only_last_short = true;
    return sizes;
  }
  sizes.usual = std::max<std::int64_t>(find_batch_size(describe_pipeline(batches.shared_from_this(), false).root), 1);
  sizes.only_last_short = only_last_short(batches);
  // A second pass beside the first one must give the same rows.
  if (!find_position_obstacle(batches)) sizes.counts = counts_of(batches);
  sizes.counts_below_cache = sizes.counts && has_cached_counts(*sizes.counts);
  return sizes;
}

std::optional<std::int64_t> BatchSizeReader::at(std::int64_t place) {
  if (sizes_.all_usual) return sizes_.usual;
  if (!sizes_.counts) return std::nullopt;
  if (!counts_) counts_ = sizes_.counts->iterate(context_);
  if (place >= next_) {
    next_ += counts_->skip(place - next_);
    Element count;
    last_.reset();
    if (next_ == place && counts_->next(count)) {
      last_ = count.tensor(0).item().toLong();
      ++next_;
    }
  }
  return last_;
}

}  // namespace lockstep::data
