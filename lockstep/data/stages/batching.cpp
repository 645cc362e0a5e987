#include "lockstep/data/stages/batching.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kLargestBatch = std::int64_t{1} << 40;

}  // namespace

BatchingStage::BatchingStage(StagePtr input, const BatchShape& shape, const char* where)
    : Stage({std::move(input)}), shape_(shape) {
  if (shape_.size >= 1 && shape_.size <= kLargestBatch) return;
  throw InvalidArgument(errors::kBadOption,
                        {.what = str("the batch size must be from 1 to ", kLargestBatch, ", got ", shape_.size),
                         .where = where,
                         .help = str("call ", where, " with the number of rows of a batch, such as 64")});
}

Cardinality BatchingStage::cardinality() const {
  return batched(input()->cardinality(), shape_.size, shape_.drop_remainder);
}

Cardinality BatchingStage::total_rows() const {
  const Cardinality rows = input()->cardinality_if(Trust::Promised);
  if (!rows.is_known() || !shape_.drop_remainder) return rows;
  return rows.value() - rows.value() % shape_.size;
}

StageTraits BatchingStage::batch_traits(StageTraits::Elements elements) const {
  return {.source = StageTraits::Source::Inputs,
          .elements = elements,
          .rows = StageTraits::Rows::Many,
          .batch_size = shape_.size,
          .drop_remainder = shape_.drop_remainder,
          .runs_functions = false};
}

std::string BatchingStage::options_text() const {
  return str("(", shape_.size, shape_.drop_remainder ? ", drop_remainder)" : ")");
}

}  // namespace lockstep::data
