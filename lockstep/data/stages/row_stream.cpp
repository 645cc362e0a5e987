#include "lockstep/data/stages/row_stream.h"

#include <algorithm>
#include <utility>

#include "lockstep/data/iterators.h"
#include "lockstep/data/row_writer.h"
#include "lockstep/data/stages/batch_sizes.h"
#include "lockstep/data/stages/look_ahead.h"

namespace lockstep::data {
namespace {

constexpr const char* kSplitting = "splitting a batch";

class BatchedRows final : public RowStream {
 public:
  BatchedRows(const Stage& batches, const IterationContext& context)
      : spec_(batches.element_spec()), sizes_(batches, context.unmeasured()), batches_(batches.iterate(context)) {}

  std::int64_t take(std::int64_t count, Place& batch) override {
    batch.error = nullptr;
    // A stream that cannot even begin says so in its first piece, also if that has no rows: other workers may fail
    // there.
    if (count == 0 && read_ == 0 && fill()) batch.error = current_.error;
    std::vector<Element> pieces;
    std::int64_t taken = 0;
    while (taken < count && fill()) {
      const std::int64_t part = std::min(count - taken, rows_ - offset_);
      if (!batch.error) batch.error = current_.error;
      if (!batch.error) pieces.push_back(slice(current_.element, offset_, offset_ + part));
      offset_ += part;
      taken += part;
    }
    if (!batch.error) batch.set([&](Element& rows) { rows = one_of(std::move(pieces)); });
    return taken;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = std::min(count, rows_ - offset_);
    offset_ += skipped;
    if (is_worth_counting(count - skipped)) skipped += skip_batches(count - skipped);
    while (skipped < count && fill()) {
      rethrow_if_fatal(current_.error);
      const std::int64_t part = std::min(count - skipped, rows_ - offset_);
      offset_ += part;
      skipped += part;
    }
    return skipped;
  }

  void look() override {
    if (!tells_all(spec_) && seen_.size() == 0) fill();
  }

 private:
  /// Less than that is as quickly computed as counted.
  bool is_worth_counting(std::int64_t rows) const { return sizes_.tells_all() && rows >= 3 * sizes_.usual(); }

  /// Leaves out the next batches that have no more than `count` rows together, and says how many rows those are.
  std::int64_t skip_batches(std::int64_t count) {
    std::int64_t rows = 0;
    std::int64_t batches = 0;
    if (sizes_.are_all_usual()) {
      batches = batches_.skip(count / sizes_.usual());
      rows = batches * sizes_.usual();
    } else {
      while (const auto next = sizes_.at(read_ + batches)) {
        if (rows + *next > count) break;
        rows += *next;
        ++batches;
      }
      batches_.skip(batches);
    }
    read_ += batches;
    return rows;
  }

  /// Makes sure that the current batch has rows left; false at the end.
  bool fill() {
    while (offset_ == rows_) {
      ended_ = ended_ || !current_.read(batches_);
      if (ended_) return false;
      ++read_;
      offset_ = 0;
      rows_ = rows_of_current();
    }
    return true;
  }

  std::int64_t rows_of_current() {
    if (!current_.error) {
      try {
        const std::int64_t rows = row_count(current_.element, kSplitting);
        if (seen_.size() == 0 && !tells_all(spec_)) seen_ = without_rows(current_.element);
        return rows;
      } catch (...) {
        current_.error = std::current_exception();
      }
    }
    if (concerns_whole_stream(current_.error)) return sizes_.usual();  // the rest is not counted
    // To look ahead is less than to count from the start.
    if (sizes_.is_only_last_short() && batches_.look(1, 0, 1) == 1) return sizes_.usual();
    try {
      return sizes_.at(read_ - 1).value_or(sizes_.usual());
    } catch (...) {
      return sizes_.usual();  // what lies below the file of a cache may not be readable any more
    }
  }

  Element one_of(std::vector<Element>&& pieces) {
    if (pieces.size() == 1) return std::move(pieces.front());
    if (!pieces.empty())
      return concatenate_batches(std::move(pieces), kSplitting,
                                 "pad all batches to one width, or share out whole batches with AutoShardPolicy::Data");
    // What is not known beforehand about rows is taken from the data where there is no other way.
    if (!tells_all(spec_)) fill();
    return empty_batch(spec_, seen_);
  }

  ElementSpec spec_;
  BatchSizes sizes_;
  LookAhead batches_;
  Place current_;
  Element seen_;           ///< a batch without rows, if the spec does not tell what they look like
  std::int64_t read_ = 0;  ///< batches that were read or left out
  std::int64_t rows_ = 0;
  std::int64_t offset_ = 0;
  bool ended_ = false;
};

class StackedRows final : public RowStream {
 public:
  StackedRows(IteratorPtr elements, const ElementSpec& row_spec)
      : spec_(row_spec.batched(PartialShape::kUnknown)), elements_(std::move(elements)) {}

  std::int64_t take(std::int64_t count, Place& batch) override {
    RowWriter writer(pool_, count, where_);
    std::int64_t taken = 0;
    batch.set([&](Element& stacked) {
      for (Element row; taken < count; writer.add(row)) {
        ++taken;  // also if it fails
        if (elements_->next(row)) continue;
        --taken;
        break;
      }
      stacked = taken == 0 ? empty_batch(spec_, last_) : writer.finish();
      if (taken > 0 && !tells_all(spec_)) last_ = without_rows(stacked);
    });
    return batch.error ? taken + elements_->skip(count - taken) : taken;
  }
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    // Somebody has to look at a row if its spec says too little for an empty batch.
    for (Place row; skipped < count && last_.size() == 0 && !tells_all(spec_) && row.read(*elements_); ++skipped) {
      rethrow_if_fatal(row.error);
      if (!row.error) last_ = without_rows(stack(std::vector(1, std::move(row.element)), kSplitting));
    }
    return skipped + elements_->skip(count - skipped);
  }
  void locate(std::int64_t consumed, Position& position) const override { elements_->locate(consumed, position); }
  void restore(Position& position) override { elements_->restore(position); }

 private:
  const std::string where_ = kSplitting;
  ElementSpec spec_;
  IteratorPtr elements_;
  BufferPool pool_;
  Element last_;  ///< the last batch without its rows, if the spec does not tell what they look like
};

class GatheredRows final : public RowStream {
 public:
  GatheredRows(RowSourcePtr rows, std::unique_ptr<IndexIterator> order)
      : rows_(std::move(rows)), order_(std::move(order)) {}

  std::int64_t take(std::int64_t count, Place& batch) override {
    read_numbers(*order_, count, indices_);
    batch.set([&](Element& rows) { rows_->gather(indices_, pool_, rows); });
    return std::ssize(indices_);
  }
  std::int64_t skip(std::int64_t count) override { return order_->skip(count); }
  void locate(std::int64_t consumed, Position& position) const override { order_->locate(consumed, position); }
  void restore(Position& position) override { order_->restore(position); }

 private:
  RowSourcePtr rows_;
  std::unique_ptr<IndexIterator> order_;
  std::vector<std::int64_t> indices_;
  BufferPool pool_;
};

}  // namespace

RowStream::~RowStream() = default;

std::unique_ptr<RowStream> rows_of_batches(const Stage& batches, const IterationContext& context) {
  return std::make_unique<BatchedRows>(batches, context);
}

std::unique_ptr<RowStream> rows_of_elements(const Stage& elements, const IterationContext& context) {
  if (RowSourcePtr rows = elements.row_source()) {
    if (auto order = elements.make_index_iterator(context)) {
      return std::make_unique<GatheredRows>(std::move(rows), std::move(order));
    }
  }
  return std::make_unique<StackedRows>(elements.iterate(context), elements.element_spec());
}

std::int64_t component_rows(const Component& component, const char* where) {
  if (const auto rows = rows_of(component)) return *rows;
  throw InvalidArgument(errors::kShape, {.what = "an element holds a scalar, which cannot be shared out among replicas",
                                         .where = where,
                                         .help = "call batch() before distribute(), or use distribute_from_function"});
}

}  // namespace lockstep::data
