#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/one_to_one.h"
#include "lockstep/data/row_writer.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/batching.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {
namespace {

/// Any rows: taken one by one and stacked.
class StackingIterator final : public BatchingIterator<ElementIterator> {
 public:
  StackingIterator(IteratorPtr input, const BatchShape& shape, std::string where)
      : BatchingIterator(std::move(input), shape), where_(std::move(where)) {}

  bool next(Element& element) override {
    RowWriter writer(pool_, size_, where_);
    if (!read_batch([&](Element& row) { writer.add(row); })) return false;
    element = writer.finish();
    return true;
  }

  std::string origin(std::int64_t number, std::int64_t row) const override {
    return input_->origin(number * size_ + row, 0);
  }

 private:
  std::string where_;
  BufferPool pool_;
};

/// Rows of a source in an order that is known as numbers: one gather a batch.
class GatheringIterator final : public BatchingIterator<IndexIterator, DeferredIterator> {
 public:
  GatheringIterator(RowSourcePtr rows, IndexIteratorPtr indices, const BatchShape& shape)
      : BatchingIterator(std::move(indices), shape), rows_(std::move(rows)) {}

  bool next(Element& element) override {
    if (!decide(chosen_)) return false;
    compute(chosen_, pool_, element);
    return true;
  }

  bool decide(std::vector<std::int64_t>& rows) override {
    std::size_t filled = 0;
    // A batch may be larger than the data: the list of numbers grows with what there is.
    while (static_cast<std::int64_t>(filled) < size_) {
      const auto part =
          static_cast<std::size_t>(std::min<std::int64_t>(size_ - static_cast<std::int64_t>(filled), 1 << 16));
      if (rows.size() < filled + part) rows.resize(filled + part);
      const std::size_t got = input_->next({rows.data() + filled, part});
      filled += got;
      if (got < part) break;
    }
    rows.resize(filled);
    return is_batch(static_cast<std::int64_t>(filled));
  }

  void compute(const std::vector<std::int64_t>& rows, BufferPool& pool, Element& element) const override {
    rows_->gather(rows, pool, element);
  }

 private:
  RowSourcePtr rows_;
  std::vector<std::int64_t> chosen_;
  BufferPool pool_;
};

class BatchStage final : public StageOf<BatchStage, BatchingStage> {
 public:
  BatchStage(StagePtr input, std::int64_t size, const BatchOptions& options)
      : StageOf(std::move(input), BatchShape{size, options.drop_remainder}, "batch"),
        is_parallel_(options.parallel_calls > 0) {}

  std::string_view kind() const override { return is_parallel_ ? "parallel_batch" : "batch"; }
  std::string describe() const override { return str(kind(), options_text()); }
  std::string identity() const override { return str("batch", options_text()); }
  StageTraits traits() const override {
    // TensorFlow does not see the size of a parallel batch; nor do we.
    return batch_traits(is_parallel_ ? StageTraits::Elements::New : StageTraits::Elements::Stacked);
  }
  ElementSpec element_spec() const override {
    // An endless input never leaves a remainder either, but TensorFlow does not look there; nor do we.
    return input()->element_spec().batched(known_rows());
  }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    if (auto rows = input()->row_source())
      return std::make_unique<GatheringIterator>(std::move(rows), input()->make_index_iterator(context), shape_);
    if (auto batches = input()->make_batch_iterator(context, shape_, describe())) return batches;
    return std::make_unique<StackingIterator>(input()->iterate(context), shape_, describe());
  }

 private:
  bool is_parallel_;
};

}  // namespace

StagePtr make_batch(StagePtr input, std::int64_t size, BatchOptions options) {
  return std::make_shared<BatchStage>(std::move(input), size, options);
}

}  // namespace lockstep::data
