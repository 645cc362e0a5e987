#include "lockstep/data/stages/batch.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/one_to_one.h"
#include "lockstep/data/row_writer.h"
#include "lockstep/data/stages/mapped_batch.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kLargestBatch = std::int64_t{1} << 40;

/// Any rows: taken one by one and stacked.
class StackingIterator final : public ElementIterator {
 public:
  StackingIterator(IteratorPtr input, std::int64_t size, bool drop_remainder, std::string where)
      : input_(std::move(input)), size_(size), drop_remainder_(drop_remainder), where_(std::move(where)) {}

  bool next(Element& element) override {
    RowWriter writer(pool_, size_, where_);
    while (writer.size() < size_ && input_->next(row_)) writer.add(row_);
    if (writer.size() == 0 || (drop_remainder_ && writer.size() < size_)) return false;
    element = writer.finish();
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t wanted = count > kLargestBatch / size_ ? kLargestBatch : count * size_;
    const std::int64_t rows = input_->skip(wanted);
    return rows / size_ + (!drop_remainder_ && rows % size_ != 0 ? 1 : 0);
  }

  void locate(std::int64_t consumed, Position& position) const override { input_->locate(consumed * size_, position); }
  void restore(Position& position) override { input_->restore(position); }
  std::string origin(std::int64_t number, std::int64_t row) const override {
    return input_->origin(number * size_ + row, 0);
  }

 private:
  IteratorPtr input_;
  std::int64_t size_;
  bool drop_remainder_;
  std::string where_;
  Element row_;
  BufferPool pool_;
};

/// Rows of a source in an order that is known as numbers: one gather a batch.
class GatheringIterator final : public DeferredIterator {
 public:
  GatheringIterator(RowSourcePtr rows, std::unique_ptr<IndexIterator> indices, std::int64_t size, bool drop_remainder)
      : rows_(std::move(rows)), indices_(std::move(indices)), size_(size), drop_remainder_(drop_remainder) {}

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
      const std::size_t got = indices_->next({rows.data() + filled, part});
      filled += got;
      if (got < part) break;
    }
    rows.resize(filled);
    return filled > 0 && !(drop_remainder_ && static_cast<std::int64_t>(filled) < size_);
  }

  void compute(const std::vector<std::int64_t>& rows, BufferPool& pool, Element& element) const override {
    rows_->gather(rows, pool, element);
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t wanted = count > kLargestBatch / size_ ? kLargestBatch : count * size_;
    const std::int64_t rows = indices_->skip(wanted);
    return rows / size_ + (!drop_remainder_ && rows % size_ != 0 ? 1 : 0);
  }

 private:
  RowSourcePtr rows_;
  std::unique_ptr<IndexIterator> indices_;
  std::int64_t size_;
  bool drop_remainder_;
  std::vector<std::int64_t> chosen_;
  BufferPool pool_;
};

}  // namespace

BatchStage::BatchStage(StagePtr input, std::int64_t batch_size, BatchOptions options)
    : Stage({std::move(input)}), batch_size_(batch_size), options_(options) {
  if (batch_size_ < 1 || batch_size_ > kLargestBatch)
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("a batch size must be at least 1, not ", batch_size_), .where = "batch"});
}

std::string BatchStage::describe() const {
  return str(kind(), "(", batch_size_, options_.drop_remainder ? ", drop_remainder)" : ")");
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
