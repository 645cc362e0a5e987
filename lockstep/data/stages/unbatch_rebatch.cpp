#include <algorithm>

#include "lockstep/data/format/listed.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/stages/balanced_cutter.h"
#include "lockstep/data/stages/row_stream.h"

namespace lockstep::data {
namespace {

class RebatchIterator final : public ElementIterator {
 public:
  RebatchIterator(std::unique_ptr<RowStream> rows, BalancedCutter cutter, bool has_empty_pieces)
      : rows_(std::move(rows)), cutter_(std::move(cutter)), has_empty_pieces_(has_empty_pieces) {}

  bool next(Element& element) override {
    if (ended_) return false;
    const std::int64_t got = rows_->take(cutter_.wanted(), piece_);
    if (!advance(got)) return false;
    piece_.give(element);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    if (ended_) return 0;
    if (has_empty_pieces_) rows_->look();  // one of them may come when there is no row left to look at
    // All rows at once, so that whole batches can be left out.
    std::int64_t rows = 0;
    BalancedCutter ahead = cutter_;
    const std::int64_t cycles = count / ahead.cycle_length();
    if (cycles > 0) rows = skipped_input(cycles, ahead.cycle_rows());
    for (std::int64_t i = cycles * ahead.cycle_length(); i < count; ++i, ahead.advance()) rows += ahead.wanted();
    std::int64_t left = rows_->skip(rows);
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

  std::unique_ptr<RowStream> rows_;
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
             return std::make_unique<RebatchIterator>(rows_of_batches(below, context), cutter, has_empty_pieces);
           }});
}

StagePtr make_unbatch(StagePtr input) {
  require_rows(input->element_spec(), "unbatch");
  return make_stage(
      {std::move(input)},
      {.kind = "unbatch",
       .traits = {.source = StageTraits::Source::Inputs, .rows = StageTraits::Rows::One, .runs_functions = false},
       .cardinality = rows_in_all,
       // A batch that fails is one place, whatever number of rows it would have had.
       .trust = [](const Stage& below) { return std::min(Trust::Promised, below.trust()); },
       .spec = [](const Stage& below) { return below.element_spec().unbatched(); },
       .iterate = over_input<UnbatchIterator>()});
}

}  // namespace lockstep::data
