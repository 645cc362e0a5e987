#include <algorithm>

#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/row_writer.h"
#include "lockstep/data/stages/batching.h"

namespace lockstep::data {
namespace {

/// Any rows: read one by one and stacked.
class StackingIterator final : public BatchingIterator<ElementIterator> {
 public:
  StackingIterator(IteratorPtr input, const BatchShape& shape, std::string where)
      : BatchingIterator(std::move(input), shape), writer_(pool_, std::move(where)) {
    writer_.set_capacity(size_);
  }

  bool next(Element& element) override {
    writer_.start_batch();
    const auto add = [&](Element& row) {
      if (!writer_.add(row)) writer_.throw_misfit(row);
    };
    if (!read_batch(add)) return false;
    element = writer_.finish();
    return true;
  }

  std::string origin(std::int64_t number, std::int64_t row) const override {
    return input_->origin(number * size_ + row, 0);
  }

 private:
  BufferPool pool_;
  RowWriter writer_;
};

/// Rows of a source in an order of numbers: one gather per batch.
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
    read_numbers(*input_, size_, rows);
    return is_batch(std::ssize(rows));
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

void read_numbers(IndexIterator& order, std::int64_t count, std::vector<std::int64_t>& numbers) {
  std::size_t filled = 0;
  while (static_cast<std::int64_t>(filled) < count) {
    const auto part =
        static_cast<std::size_t>(std::min<std::int64_t>(count - static_cast<std::int64_t>(filled), 1 << 16));
    if (numbers.size() < filled + part) numbers.resize(filled + part);
    const std::size_t got = order.next({numbers.data() + filled, part});
    filled += got;
    if (got < part) break;
  }
  numbers.resize(filled);
}

StagePtr make_batch(StagePtr input, std::int64_t size, BatchOptions options) {
  const BatchShape shape{size, options.drop_remainder};
  const std::string kind = options.parallel_calls > 0 ? "parallel_batch" : "batch";
  const std::string text = kind + options_text(shape);
  return make_batching_stage(
      std::move(input), shape, "batch",
      {.kind = kind,
       .text = text,
       .identity = "batch" + options_text(shape),
       // TensorFlow does not see the size of a parallel batch; neither do we.
       .traits = {.elements = options.parallel_calls > 0 ? StageTraits::Elements::New : StageTraits::Elements::Stacked},
       // An endless input never leaves a remainder either, but TensorFlow ignores that; so do we.
       .spec = [shape](const Stage& below) { return below.element_spec().batched(shape.known_rows()); },
       .iterate = [shape, text](const Stage& below, const IterationContext& context) -> IteratorPtr {
         if (auto rows = below.row_source())
           return std::make_unique<GatheringIterator>(std::move(rows), below.make_index_iterator(context), shape);
         if (auto batches = below.make_batch_iterator(context, shape, text)) return batches;
         return std::make_unique<StackingIterator>(below.iterate(context), shape, text);
       }});
}

std::string options_text(const BatchShape& shape) {
  return str("(", shape.size, shape.drop_remainder ? ", drop_remainder)" : ")");
}

StagePtr make_batching_stage(StagePtr input, const BatchShape& shape, const char* where, StageDescription description) {
  constexpr std::int64_t kLargestBatch = std::int64_t{1} << 40;
  if (shape.size < 1 || shape.size > kLargestBatch)
    refuse_option(where, str("the batch size must be from 1 to ", kLargestBatch, ", got ", shape.size),
                  str("call ", where, " with the number of rows of a batch, such as 64"));
  description.traits = {.source = StageTraits::Source::Inputs,
                        .elements = description.traits.elements,
                        .rows = StageTraits::Rows::Many,
                        .batch_size = shape.size,
                        .drop_remainder = shape.drop_remainder,
                        .runs_functions = false};
  description.cardinality = [shape](const Stage& below) {
    return batched(below.cardinality(), shape.size, shape.drop_remainder);
  };
  description.total_rows = [shape](const Stage& below) {
    const Cardinality rows = below.cardinality_if(Reliability::Promised);
    if (!rows.is_known() || !shape.drop_remainder) return rows;
    return Cardinality(rows.value() - rows.value() % shape.size);
  };
  return make_stage({std::move(input)}, std::move(description));
}

}  // namespace lockstep::data
