#include "lockstep/data/stages/padded_batch.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/stages/batching.h"

namespace lockstep::data {
namespace {

class PaddedBatchIterator final : public BatchingIterator<ElementIterator> {
 public:
  PaddedBatchIterator(IteratorPtr input, std::int64_t size, PaddedBatchOptions options, std::string where)
      : BatchingIterator(std::move(input), size, options.drop_remainder),
        options_(std::move(options)),
        where_(std::move(where)) {}

  bool next(Element& element) override {
    std::vector<Element> rows;
    if (!read_batch([&](Element& row) { rows.push_back(std::move(row)); })) return false;
    for (std::size_t i = 0; i < rows.front().size(); ++i)
      if (std::holds_alternative<at::Tensor>(rows.front().components[i])) pad(rows, i);
    element = stack(std::move(rows), where_);
    return true;
  }

 private:
  /// Makes component i of all rows as large as asked, or as the largest of them.
  void pad(std::vector<Element>& rows, std::size_t i) const {
    const at::Tensor& first = rows.front().tensor(i);
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(first.dim()), 0);
    for (const Element& row : rows) {
      const at::Tensor& tensor = row.tensor(i);
      if (tensor.dim() != first.dim())
        throw InvalidArgument(errors::kShape, {.what = "rows to be padded must have the same rank",
                                               .where = where_,
                                               .seen = str(describe(rows.front()), " and ", describe(row))});
      for (std::size_t d = 0; d < sizes.size(); ++d) sizes[d] = std::max(sizes[d], tensor.sizes()[d]);
    }
    if (i < options_.padded_shapes.size() && options_.padded_shapes[i]) fix_sizes(sizes, *options_.padded_shapes[i], i);
    c10::Scalar value = 0;
    if (options_.padding_values.size() > 1 && i >= options_.padding_values.size())
      throw InvalidArgument(errors::kBadOption,
                            {.what = str("component ", i, " has no padding value"),
                             .where = where_,
                             .seen = counted(static_cast<long long>(options_.padding_values.size()), "padding value"),
                             .help = "give one value for each component, one for all, or none"});
    if (!options_.padding_values.empty()) value = options_.padding_values[options_.padding_values.size() == 1 ? 0 : i];
    for (Element& row : rows) {
      at::Tensor& tensor = std::get<at::Tensor>(row.components[i]);
      if (tensor.sizes() == at::IntArrayRef(sizes)) continue;
      at::Tensor padded = at::full(sizes, value, tensor.options());
      at::Tensor corner = padded;
      for (std::int64_t d = 0; d < tensor.dim(); ++d) corner = corner.narrow(d, 0, tensor.size(d));
      corner.copy_(tensor);
      tensor = std::move(padded);
    }
  }

  void fix_sizes(std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& wanted, std::size_t i) const {
    if (wanted.size() != sizes.size())
      throw InvalidArgument(errors::kShape,
                            {.what = str("the padded shape of component ", i, " has another rank"),
                             .where = where_,
                             .seen = str(to_string(PartialShape(wanted)), " for rows of rank ", sizes.size())});
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (wanted[d] < 0) continue;
      if (sizes[d] > wanted[d])
        throw DataLoss(errors::kShape, {.what = str("a row of component ", i, " is larger than its padded shape"),
                                        .where = where_,
                                        .seen = str("size ", sizes[d], " in dimension ", d, ", padded to ", wanted[d]),
                                        .help = "use -1 to pad to the longest row of the batch"});
      sizes[d] = wanted[d];
    }
  }

  PaddedBatchOptions options_;
  std::string where_;
};

class UnbatchIterator final : public ElementIterator {
 public:
  explicit UnbatchIterator(IteratorPtr input) : input_(std::move(input)) {}

  bool next(Element& element) override {
    if (!load()) return false;
    element = row(batch_, at_++);
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count) {
      try {
        if (!load()) break;
      } catch (...) {  // a batch that fails has one place
        ++skipped;
        continue;
      }
      const std::int64_t step = std::min(rows_ - at_, count - skipped);
      at_ += step;
      skipped += step;
    }
    return skipped;
  }

 private:
  /// Makes sure that there is a row; false at the end.
  bool load() {
    while (at_ == rows_) {
      at_ = rows_ = 0;
      if (!input_->next(batch_)) return false;
      rows_ = row_count(batch_, "unbatch");
    }
    return true;
  }

  IteratorPtr input_;
  Element batch_;
  std::int64_t rows_ = 0;
  std::int64_t at_ = 0;
};

}  // namespace

PaddedBatchStage::PaddedBatchStage(StagePtr input, std::int64_t batch_size, PaddedBatchOptions options)
    : Stage({std::move(input)}), batch_size_(batch_size), options_(std::move(options)) {
  if (batch_size_ < 1 || batch_size_ > kLargestBatch)
    throw InvalidArgument(errors::kBadOption, {.what = str("a batch size must be a number from 1 to ", kLargestBatch,
                                                           ", not ", batch_size_),
                                               .where = "padded_batch"});
}

std::string PaddedBatchStage::describe() const {
  return str("padded_batch(", batch_size_, options_.drop_remainder ? ", drop_remainder)" : ")");
}

StagePtr PaddedBatchStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<PaddedBatchStage>(std::move(inputs.front()), batch_size_, options_);
}

Cardinality PaddedBatchStage::cardinality() const {
  return batched(input()->cardinality(), batch_size_, options_.drop_remainder);
}

ElementSpec PaddedBatchStage::element_spec() const {
  ElementSpec spec = input()->element_spec();
  if (!spec.components) return spec;
  for (std::size_t i = 0; i < spec.components->size(); ++i) {
    ComponentSpec& component = (*spec.components)[i];
    if (component.kind == ComponentSpec::Kind::Tensor && i < options_.padded_shapes.size() && options_.padded_shapes[i])
      component.shape = PartialShape(*options_.padded_shapes[i]);
  }
  return spec.batched(options_.drop_remainder ? batch_size_ : PartialShape::kUnknown);
}

IteratorPtr PaddedBatchStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<PaddedBatchIterator>(input()->iterate(context), batch_size_, options_, describe());
}

StagePtr UnbatchStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<UnbatchStage>(std::move(inputs.front()));
}

Cardinality UnbatchStage::cardinality() const {
  const Cardinality batches = input()->cardinality();
  if (batches.is_infinite() || batches == Cardinality(0)) return batches;
  const ElementSpec spec = input()->element_spec();
  if (!batches.is_known() || !spec.components || spec.components->empty()) return Cardinality::unknown();
  const PartialShape& shape = spec.components->front().shape;
  if (!shape.has_rank() || shape.rank() == 0 || shape.dim(0) == PartialShape::kUnknown) return Cardinality::unknown();
  return multiplied(batches, shape.dim(0));
}

IteratorPtr UnbatchStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<UnbatchIterator>(input()->iterate(context));
}

}  // namespace lockstep::data
