#include "lockstep/data/distribute/row_stream.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/distribute/end_of_data.h"

namespace lockstep::data {
namespace {

constexpr const char* kWhere = "splitting a batch";

Component empty_component(const ComponentSpec& spec) {
  const StaticShape shape = dummy_shape(spec.shape.has_rank() ? spec.shape.dims() : StaticShape{kUnknownDim});
  if (spec.kind == ComponentSpec::Kind::Bytes) {
    if (shape.empty()) return std::string();
    return Strings();
  }
  return at::zeros(shape, at::TensorOptions().dtype(spec.dtype.value_or(at::kFloat)));
}

PartialShape row_shape(const at::Tensor& batch) { return PartialShape(batch.sizes().slice(1).vec()); }

/// The rows of several pieces as one batch; rows of different shape do not fit into one.
Element joined_rows(std::vector<Element>&& pieces) {
  for (const Element& piece : pieces) {
    for (std::size_t i = 0; i < piece.size(); ++i) {
      const auto* first = std::get_if<at::Tensor>(&pieces.front().components[i]);
      const auto* tensor = std::get_if<at::Tensor>(&piece.components[i]);
      if (!first || !tensor || first->sizes().slice(1) == tensor->sizes().slice(1)) continue;
      throw FailedPrecondition(
          errors::kShape,
          {.what = "rows of different shape would have to share a batch",
           .where = kWhere,
           .seen = lockstep::str("component ", i, ": rows of ", to_string(row_shape(*first)), " and of ",
                                 to_string(row_shape(*tensor))),
           .help = "pad all batches to one width, or share out whole batches with AutoShardPolicy::Data"});
    }
  }
  return concatenate_batches(std::move(pieces), kWhere);
}

class BatchedRows final : public RowStream {
 public:
  BatchedRows(const Stage& batches, const IterationContext& context, std::optional<std::int64_t> uniform)
      : spec_(batches.element_spec()), uniform_(uniform), batches_(batches.iterate(context)) {}

  std::int64_t take(std::int64_t count, Element& batch) override {
    std::vector<Element> pieces;
    std::int64_t taken = 0;
    while (taken < count && fill()) {
      const std::int64_t part = std::min(count - taken, rows_ - offset_);
      pieces.push_back(slice(current_, offset_, offset_ + part));
      offset_ += part;
      taken += part;
    }
    if (pieces.size() == 1) {
      batch = std::move(pieces.front());
    } else if (!pieces.empty()) {
      batch = joined_rows(std::move(pieces));
    } else {
      // What is not known beforehand about rows is taken from the data where there is no other way.
      const bool look = !tells_all(spec_) && (fill() || current_.size() > 0);
      batch = look ? slice(current_, 0, 0) : empty_batch(spec_);
    }
    return taken;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count && fill()) {
      const std::int64_t part = std::min(count - skipped, rows_ - offset_);
      offset_ += part;
      skipped += part;
    }
    return skipped;
  }

  void seek(std::int64_t count) override {
    if (uniform_ && *uniform_ > 0) {
      batches_->skip(count / *uniform_);
      count %= *uniform_;
    }
    skip(count);
  }

 private:
  /// Makes sure that the current batch has rows left; false at the end.
  bool fill() {
    while (offset_ == rows_) {
      if (ended_) return false;
      Element next;
      if (!batches_->next(next)) {
        ended_ = true;
        return false;
      }
      rows_ = row_count(next, kWhere);
      offset_ = 0;
      current_ = std::move(next);
    }
    return true;
  }

  ElementSpec spec_;
  std::optional<std::int64_t> uniform_;
  IteratorPtr batches_;
  Element current_;
  std::int64_t rows_ = 0;
  std::int64_t offset_ = 0;
  bool ended_ = false;
};

class StackedRows final : public RowStream {
 public:
  StackedRows(const Stage& elements, const IterationContext& context)
      : spec_(elements.element_spec().batched(PartialShape::kUnknown)), elements_(elements.iterate(context)) {}

  std::int64_t take(std::int64_t count, Element& batch) override {
    std::vector<Element> rows;
    Element row;
    while (std::ssize(rows) < count && elements_->next(row)) rows.push_back(std::move(row));
    const std::int64_t taken = std::ssize(rows);
    if (taken == 0) {
      batch = last_.size() > 0 && !tells_all(spec_) ? last_ : empty_batch(spec_);
    } else {
      batch = stack(std::move(rows), kWhere);
      last_ = slice(batch, 0, 0);
    }
    return taken;
  }
  std::int64_t skip(std::int64_t count) override { return elements_->skip(count); }

 private:
  ElementSpec spec_;
  IteratorPtr elements_;
  Element last_;
};

class GatheredRows final : public RowStream {
 public:
  GatheredRows(RowSourcePtr rows, std::unique_ptr<IndexIterator> order)
      : rows_(std::move(rows)), order_(std::move(order)) {}

  std::int64_t take(std::int64_t count, Element& batch) override {
    indices_.resize(static_cast<std::size_t>(count));
    indices_.resize(count > 0 ? order_->next(indices_) : 0);
    batch = Element();
    rows_->gather(indices_, pool_, batch);
    return std::ssize(indices_);
  }
  std::int64_t skip(std::int64_t count) override { return order_->skip(count); }

 private:
  RowSourcePtr rows_;
  std::unique_ptr<IndexIterator> order_;
  std::vector<std::int64_t> indices_;
  BufferPool pool_;
};

}  // namespace

RowStream::~RowStream() = default;

std::unique_ptr<RowStream> rows_of_batches(const Stage& batches, const IterationContext& context,
                                           std::optional<std::int64_t> uniform) {
  return std::make_unique<BatchedRows>(batches, context, uniform);
}

std::unique_ptr<RowStream> rows_of_elements(const Stage& elements, const IterationContext& context) {
  if (RowSourcePtr rows = elements.row_source()) {
    if (auto order = elements.make_index_iterator(context)) {
      return std::make_unique<GatheredRows>(std::move(rows), std::move(order));
    }
  }
  return std::make_unique<StackedRows>(elements, context);
}

Element empty_batch(const ElementSpec& spec) {
  if (!spec.components) return Element();
  Element empty;
  empty.skeleton = spec.skeleton;
  for (const ComponentSpec& component : *spec.components) empty.components.push_back(empty_component(component));
  return empty;
}

bool tells_all(const ElementSpec& spec) {
  return spec.components && std::ranges::none_of(*spec.components, [](const ComponentSpec& component) {
           return component.kind == ComponentSpec::Kind::Unknown || !component.shape.has_rank() ||
                  (component.kind == ComponentSpec::Kind::Tensor && !component.dtype);
         });
}

std::int64_t component_rows(const Component& component, const char* where) {
  if (const auto* tensor = std::get_if<at::Tensor>(&component); tensor && tensor->dim() > 0) return tensor->size(0);
  if (const auto* strings = std::get_if<Strings>(&component)) return strings->size();
  throw InvalidArgument(errors::kShape, {.what = "an element holds a scalar, which cannot be shared out among replicas",
                                         .where = where,
                                         .help = "call batch() before distribute(), or use distribute_from_function"});
}

Component component_slice(const Component& component, std::int64_t begin, std::int64_t end) {
  if (const auto* tensor = std::get_if<at::Tensor>(&component)) return tensor->narrow(0, begin, end - begin);
  const auto& values = std::get<Strings>(component).values();
  return Strings(std::vector<std::string>(values.begin() + begin, values.begin() + end));
}

}  // namespace lockstep::data
