#include "lockstep/data/distribute/own_rows.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/iterators.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/data/row_writer.h"
#include "lockstep/data/stages/look_ahead.h"

namespace lockstep::data {
namespace {

/// The rows below a `batch`, returned in pieces: gathered in one call if they are an order of rows of a source,
/// otherwise computed one by one, each moved into its piece at once.
class RowStream {
 public:
  RowStream(const Stage& rows, const IterationContext& context, std::string where)
      : batch_spec_(rows.element_spec().batched(PartialShape::kUnknown)),
        knows_rows_(tells_all(batch_spec_)),
        source_(rows.row_source()),
        writer_(pool_, std::move(where)) {
    if (source_) order_ = rows.make_index_iterator(context);
    if (!order_) rows_ = rows.iterate(context);
  }

  /// Starts another batch. The rows of one batch must match.
  void start_batch() { writer_.start_batch(); }
  /// Writes the next `count` rows into a piece with its own memory, or the error of the first that fails; returns how
  /// many there were, fewer only at the end. With 0 rows it writes an empty batch, without components if the rows'
  /// structure is unknown.
  std::int64_t take(std::int64_t count, Place& piece) {
    if (order_ && count > 0) {
      read_numbers(*order_, count, numbers_);
      piece.set([&](Element& rows) {
        source_->gather(numbers_, pool_, rows);
        for (Component& component : rows.components) {
          auto* const tensor = std::get_if<at::Tensor>(&component);
          if (tensor != nullptr && tensor->requires_grad())
            *tensor = tensor->detach();  // a source may return such
                                         // rows
        }
      });
      return std::ssize(numbers_);
    }
    std::int64_t taken = 0;
    writer_.set_capacity(count);
    try {
      while (taken < count) {
        ++taken;  // counts even if it fails
        if (!rows_->next(row_)) {
          --taken;
          break;
        }
        if (!writer_.add(row_)) writer_.throw_misfit(row_);
      }
      const c10::AutoGradMode no_grad(false);  // a function may return tensors that require gradients
      piece.element = taken > 0 ? writer_.finish() : empty();
    } catch (...) {
      piece.error = std::current_exception();
      taken += rows_->skip(count - taken);
    }
    return taken;
  }
  /// Skips up to `count` rows, if possible without computing them; returns how many there were. Ignores errors, unless
  /// they concern the whole stream.
  std::int64_t skip(std::int64_t count) {
    std::int64_t skipped = 0;
    // Read at least one row if the spec is too incomplete for an empty batch.
    for (Place row; rows_ && skipped < count && !knows_rows_ && !writer_.form() && row.read(*rows_); ++skipped) {
      rethrow_if_fatal(row.error);
      if (!row.error) writer_.look_at(row.element);
    }
    return skipped + places().skip(count - skipped);
  }
  /// The iterator that counts the rows, for positions.
  PlaceIterator& places() const {
    if (order_) return *order_;
    return *rows_;
  }

 private:
  Element empty() const {
    if (knows_rows_) return empty_batch(batch_spec_, {});
    return writer_.form() ? writer_.form()->empty_batch() : Element();
  }

  const ElementSpec batch_spec_;
  const bool knows_rows_;
  RowSourcePtr source_;
  IndexIteratorPtr order_;  ///< order of the source's rows
  std::vector<std::int64_t> numbers_;
  IteratorPtr rows_;  ///< if there is no such order
  Element row_;
  BufferPool pool_;
  RowWriter writer_;
};

/// `rows` with a LookAhead below the last stages that skip rows at no cost, such as `map`: they run only for the rows
/// that are taken. `ahead` is set when the rows are iterated.
StagePtr with_look_ahead(const StagePtr& rows, LookAhead*& ahead) {
  const StageTraits traits = rows->traits();
  if (traits.is_one_to_one() && traits.passes_over) return rows->with_inputs({with_look_ahead(rows->input(), ahead)});
  return make_stage({rows}, {.kind = "look_ahead",
                             .traits = {.is_measured = false},  // internal to its reader
                             .iterate = [&ahead](const Stage& below, const IterationContext& context) {
                               auto iterator = std::make_unique<LookAhead>(below.iterate(context));
                               ahead = iterator.get();
                               return iterator;
                             }});
}

/// Only the worker's own rows of each batch. A short last batch is cut at other rows than a full one: unless it is
/// known beforehand which batch is the last, each is measured before it is cut.
class OwnRows final : public StepSource {
 public:
  OwnRows(const Stage& pipeline, const GlobalSplit& split, const IterationContext& context)
      : split_(split), size_(*split.batch), own_of_full_(own_of(size_)) {
    const Stage& batch = below_plain_stages(pipeline);
    const Cardinality all = batch.input()->cardinality_if(Reliability::Certain);
    if (all.is_known()) known_ = all.value();
    const bool looks = all.is_unknown() && !split_.drop_remainder;
    rows_.emplace(looks ? *with_look_ahead(batch.input(), ahead_) : *batch.input(), context, batch.describe());
  }

  void locate(std::int64_t steps, Position& position) const override {
    rows_->places().locate(skipped_input(steps, size_), position);
  }
  void restore(std::int64_t steps, Position& position) override {
    rows_->places().restore(position);
    step_ = steps;
  }

  InputStep next() override {
    if (ended_) return end();
    const std::int64_t batch = rows_of_batch();
    if (batch < size_ && (batch == 0 || split_.drop_remainder)) {
      rows_->skip(size_);  // the rest: a cache below must see all
      return end();
    }
    ++step_;
    InputStep step{.elements = {}, .total = split_.cluster.replicas()};
    step.rows = {.all = batch, .has_empty = batch < split_.cluster.replicas()};
    std::int64_t found = 0;
    std::exception_ptr error;  // the first error; the batch is read to its end
    const std::vector<RowRange> own_of_short = batch < size_ ? own_of(batch) : std::vector<RowRange>();
    rows_->start_batch();
    for (const RowRange& piece : batch < size_ ? own_of_short : own_of_full_) {
      if (found < piece.begin) found += rows_->skip(piece.begin - found);
      Place rows;
      if (piece.size() == 0 && !step.elements.empty())
        rows.element = without_rows(*step.elements.front());
      else
        found += rows_->take(piece.size(), rows);
      error = rows.error;
      if (error) break;
      step.elements.emplace_back(std::move(rows.element));
    }
    if (found < batch) found += rows_->skip(batch - found);
    if (error && (found == batch || concerns_whole_stream(error))) std::rethrow_exception(error);
    return found == batch ? std::move(step) : end();  // a short last batch is dropped
  }

 private:
  /// The rows of a batch that belong to the worker's replicas.
  std::vector<RowRange> own_of(std::int64_t batch) const {
    std::vector<RowRange> own;
    const int first = split_.cluster.worker * split_.cluster.replicas_per_worker;
    for (int k = 0; k < split_.cluster.replicas_per_worker; ++k)
      own.push_back(cut(SplitRule::Even, batch, split_.cluster.replicas(), first + k));
    return own;
  }
  /// Rows of the next batch; a full one's if only reading would show it.
  std::int64_t rows_of_batch() {
    if (known_) return std::clamp<std::int64_t>(*known_ - step_ * size_, 0, size_);
    if (!ahead_) return size_;
    // The own rows of a shorter batch never end after those of a full one.
    return ahead_->look(size_, 0, own_of_full_.back().end);
  }
  InputStep end() {
    ended_ = true;
    return InputStep::end(split_.cluster);
  }

  const GlobalSplit split_;
  const std::int64_t size_;
  const std::vector<RowRange> own_of_full_;
  std::optional<std::int64_t> known_;  ///< total rows, if a short last batch must be known beforehand
  LookAhead* ahead_ = nullptr;         ///< within `rows_`, if the total is unknown
  std::optional<RowStream> rows_;
  std::int64_t step_ = 0;
  bool ended_ = false;
};

}  // namespace

bool can_read_own_rows(const Stage& pipeline, const GlobalSplit& split, const IterationContext& context) {
  // Functions that do not keep their order would return the rows of a short last batch in a different one.
  if (split.rule == SplitRule::None || !split.batch || find_position_obstacle(pipeline)) return false;
  if (split.cluster.workers > 1) return true;
  // A thread above the batch, or calls that fill a batch together, are faster. A report needs its line for batches.
  const Stage& batch = below_plain_stages(pipeline);
  // Pieces gathered separately are not compared with each other: the rows of one batch must be known to match.
  const ElementSpec rows = batch.input()->element_spec().batched(PartialShape::kUnknown);
  if (batch.input()->row_source() && !tells_all(rows)) return false;
  return &batch == &pipeline && !batch.input()->description().batches && !context.meter &&
         !batch.input()->cardinality_if(Reliability::Certain).is_unknown();
}

std::unique_ptr<StepSource> read_own_rows(const Stage& pipeline, const GlobalSplit& split,
                                          const IterationContext& context) {
  return std::make_unique<OwnRows>(pipeline, split, context);
}

}  // namespace lockstep::data
