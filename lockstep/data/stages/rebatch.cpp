#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/stages/balanced_cutter.h"
#include "lockstep/data/stages/row_stream.h"
#include "lockstep/data/stages/stages.h"

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

}  // namespace lockstep::data
