#include "lockstep/data/stages/batch.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/one_to_one.h"
#include "lockstep/data/row_writer.h"
#include "lockstep/data/stages/batching.h"
#include "lockstep/data/stages/mapped_batch.h"

namespace lockstep::data {
namespace {

/// Any rows: taken one by one and stacked.
class StackingIterator final : public BatchingIterator<ElementIterator> {
 public:
  StackingIterator(IteratorPtr input, std::int64_t size, bool drop_remainder, std::string where)
      : BatchingIterator(std::move(input), size, drop_remainder), where_(std::move(where)) {}

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
  GatheringIterator(RowSourcePtr rows, std::unique_ptr<IndexIterator> indices, std::int64_t size, bool drop_remainder)
      : BatchingIterator(std::move(indices), size, drop_remainder), rows_(std::move(rows)) {}

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

}  // namespace

BatchStage::BatchStage(StagePtr input, std::int64_t batch_size, BatchOptions options)
    : Stage({std::move(input)}), batch_size_(batch_size), options_(options) {
  if (batch_size_ < 1 || batch_size_ > kLargestBatch)
    throw InvalidArgument(errors::kBadOption, {.what = str("a batch size must be a number from 1 to ", kLargestBatch,
                                                           ", not ", batch_size_),
                                               .where = "batch"});
}

std::string BatchStage::describe() const {
  return str(kind(), "(", batch_size_, options_.drop_remainder ? ", drop_remainder)" : ")");
}

std::string BatchStage::identity() const {
  return str("batch(", batch_size_, options_.drop_remainder ? ", drop_remainder)" : ")");
}

StagePtr BatchStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<BatchStage>(std::move(inputs.front()), batch_size_, options_);
}

Cardinality BatchStage::cardinality() const {
  return batched(input()->cardinality(), batch_size_, options_.drop_remainder);
}

ElementSpec BatchStage::element_spec() const {
  // An endless input never leaves a remainder either, but TensorFlow does not look there; nor do we.
  return input()->element_spec().batched(options_.drop_remainder ? batch_size_ : PartialShape::kUnknown);
}

IteratorPtr BatchStage::make_iterator(const IterationContext& context) const {
  if (auto rows = input()->row_source())
    return std::make_unique<GatheringIterator>(std::move(rows), input()->make_index_iterator(context), batch_size_,
                                               options_.drop_remainder);
  const auto map = std::dynamic_pointer_cast<const MapStage>(input());
  if (map && map->options().parallel_calls > 0 && map->options().ordered && !context.meter)
    return make_mapped_batch_iterator(map, context, batch_size_, options_.drop_remainder, describe());
  return std::make_unique<StackingIterator>(input()->iterate(context), batch_size_, options_.drop_remainder,
                                            describe());
}

}  // namespace lockstep::data
