#include "lockstep/data/stages/batching.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kLargestBatch = std::int64_t{1} << 40;

}  // namespace

std::string options_text(const BatchShape& shape) {
  return str("(", shape.size, shape.drop_remainder ? ", drop_remainder)" : ")");
}

StagePtr make_batching_stage(StagePtr input, const BatchShape& shape, const char* where, StageDescription description) {
  if (shape.size < 1 || shape.size > kLargestBatch)
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("the batch size must be from 1 to ", kLargestBatch, ", got ", shape.size),
                           .where = where,
                           .help = str("call ", where, " with the number of rows of a batch, such as 64")});
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
    const Cardinality rows = below.cardinality_if(Trust::Promised);
    if (!rows.is_known() || !shape.drop_remainder) return rows;
    return Cardinality(rows.value() - rows.value() % shape.size);
  };
  return make_stage({std::move(input)}, std::move(description));
}

}  // namespace lockstep::data
