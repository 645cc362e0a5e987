#include <algorithm>

#include "lockstep/data/format/listed.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/stages/balanced_cutter.h"
#include "lockstep/data/stages/batch_sizes.h"
#include "lockstep/data/stages/look_ahead.h"

namespace lockstep::data {
namespace {

constexpr const char* kSplitting = "splitting a batch";

/// The rows of a dataset of batches, returned in pieces of any size. Failed rows keep their places: a piece that
/// contains one is its error, and the next piece begins where it always would. A failed batch counts for its number of
/// rows, or for the usual number if only computing it would show that.
class BatchedRows {
 public:
  BatchedRows(const Stage& batches, const IterationContext& context)
      : spec_(batches.element_spec()), sizes_(batches, context.unmeasured()), batches_(batches.iterate(context)) {}

  /// The next `count` rows as one batch, or the error of the first that fails; returns how many there were, fewer only
  /// at the end. With 0 rows `batch` is an empty batch, without components if the rows' structure is unknown.
  std::int64_t take(std::int64_t count, Place& batch) {
    batch.error = nullptr;
    // A stream that cannot even begin fails with its first piece, even if that has no rows: other workers may fail
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

  /// Skips up to `count` rows, if possible without computing them; returns how many there were. Ignores errors, unless
  /// they concern the whole stream.
  std::int64_t skip(std::int64_t count) {
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

  /// Reads the next row if the rows' structure is still unknown.
  void look() {
    if (!tells_all(spec_) && seen_.size() == 0) fill();
  }

 private:
  /// Fewer rows are computed as quickly as counted.
  bool is_worth_counting(std::int64_t rows) const { return sizes_.tells_all() && rows >= 3 * sizes_.usual(); }

  /// Skips the next batches that have at most `count` rows together, and returns the number of those rows.
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
    // Looking ahead costs less than counting from the start.
    if (sizes_.is_only_last_short() && batches_.look(1, 0, 1) == 1) return sizes_.usual();
    try {
      return sizes_.at(read_ - 1).value_or(sizes_.usual());
    } catch (...) {
      return sizes_.usual();  // the data below a cache file may no longer be readable
    }
  }

  Element one_of(std::vector<Element>&& pieces) {
    if (pieces.size() == 1) return std::move(pieces.front());
    if (!pieces.empty())
      return concatenate_batches(std::move(pieces), kSplitting,
                                 "pad all batches to one width, or share out whole batches with AutoShardPolicy::Data");
    // The rows' structure is taken from the data if the spec is incomplete.
    if (!tells_all(spec_)) fill();
    return empty_batch(spec_, seen_);
  }

  ElementSpec spec_;
  BatchSizes sizes_;
  LookAhead batches_;
  Place current_;
  Element seen_;           ///< a batch without rows, if the spec is incomplete
  std::int64_t read_ = 0;  ///< batches read or skipped
  std::int64_t rows_ = 0;
  std::int64_t offset_ = 0;
  bool ended_ = false;
};

class RebatchIterator final : public ElementIterator {
 public:
  RebatchIterator(const Stage& batches, const IterationContext& context, BalancedCutter cutter, bool has_empty_pieces)
      : rows_(batches, context), cutter_(std::move(cutter)), has_empty_pieces_(has_empty_pieces) {}

  bool next(Element& element) override {
    if (ended_) return false;
    const std::int64_t got = rows_.take(cutter_.wanted(), piece_);
    if (!advance(got)) return false;
    piece_.give(element);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    if (ended_) return 0;
    if (has_empty_pieces_) rows_.look();  // one of them may come when no row is left to look at
    // All rows at once, so that whole batches can be skipped.
    std::int64_t rows = 0;
    BalancedCutter ahead = cutter_;
    const std::int64_t cycles = count / ahead.cycle_length();
    if (cycles > 0) rows = skipped_input(cycles, ahead.cycle_rows());
    for (std::int64_t i = cycles * ahead.cycle_length(); i < count; ++i, ahead.advance()) rows += ahead.wanted();
    std::int64_t left = rows_.skip(rows);
    if (left == rows) {
      cutter_ = std::move(ahead);
      return count;
    }
    std::int64_t skipped = 0;
    for (; !ended_; ++skipped) {
      const std::int64_t got = std::min(left, cutter_.wanted());
      left -= got;
      if (!advance(got)) break;
    }
    return skipped;
  }

 private:
  bool advance(std::int64_t got) {
    const bool accepted = cutter_.accepts(got);
    ended_ = !accepted || got < cutter_.wanted();
    cutter_.advance();
    return accepted;
  }

  BatchedRows rows_;
  BalancedCutter cutter_;
  bool has_empty_pieces_;
  Place piece_;
  bool ended_ = false;
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
    return skip_within_parts(
        count, [this] { return load(); },
        [this](std::int64_t left) {
          const std::int64_t passed = std::min(rows_ - at_, left);
          at_ += passed;
          return passed;
        });
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

Cardinality rows_in_all(const Stage& below) {
  const Cardinality batches = below.cardinality();
  if (!batches.is_known() || batches == Cardinality(0)) return batches;
  const ElementSpec spec = below.element_spec();
  if (!spec.components || spec.components->empty()) return Cardinality::unknown();
  const std::int64_t rows = spec.components->front().shape.rows();
  return rows == PartialShape::kUnknown ? Cardinality::unknown() : multiplied(batches, rows);
}

}  // namespace

StagePtr make_rebatch(StagePtr batches, std::vector<std::int64_t> sizes, bool drop_remainder) {
  const BalancedCutter cutter(sizes, drop_remainder);
  const bool has_empty_pieces = std::ranges::find(sizes, 0) != sizes.end();
  return make_stage(
      {std::move(batches)},
      {.kind = "rebatch",
       .text = str("rebatch(", listed(sizes), drop_remainder ? ", drop_remainder)" : ")"),
       .traits = {.source = StageTraits::Source::Inputs, .rows = StageTraits::Rows::Many, .runs_functions = false},
       .cardinality =
           [](const Stage& below) {
             const Cardinality all = below.cardinality();
             return all.is_infinite() ? all : Cardinality::unknown();
           },
       .spec = [sizes = std::move(sizes),
                drop_remainder](const Stage& below) { return below.element_spec().rebatched(sizes, drop_remainder); },
       .iterate =
           [cutter, has_empty_pieces](const Stage& below, const IterationContext& context) {
             return std::make_unique<RebatchIterator>(below, context, cutter, has_empty_pieces);
           }});
}

StagePtr make_unbatch(StagePtr input) {
  require_rows(input->element_spec(), "unbatch");
  return make_stage(
      {std::move(input)},
      {.kind = "unbatch",
       .traits = {.source = StageTraits::Source::Inputs, .rows = StageTraits::Rows::One, .runs_functions = false},
       .cardinality = rows_in_all,
       // A failed batch is one place, whatever its number of rows would have been.
       .reliability = [](const Stage& below) { return std::min(Reliability::Promised, below.reliability()); },
       .spec = [](const Stage& below) { return below.element_spec().unbatched(); },
       .iterate = over_input<UnbatchIterator>()});
}

}  // namespace lockstep::data
