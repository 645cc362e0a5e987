#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/data/place.h"
#include "lockstep/data/spec_shapes.h"
#include "lockstep/data/stage.h"
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

class RebatchStage final : public StageOf<RebatchStage> {
 public:
  RebatchStage(StagePtr batches, std::vector<std::int64_t> sizes, bool drop_remainder)
      : StageOf({std::move(batches)}), sizes_(std::move(sizes)), drop_remainder_(drop_remainder) {
    BalancedCutter check(sizes_, drop_remainder_);
  }

  std::string_view kind() const override { return "rebatch"; }
  std::string describe() const override {
    std::string text = "rebatch(";
    for (std::size_t i = 0; i < sizes_.size(); ++i) text += str(i ? ", " : "", sizes_[i]);
    return text + (drop_remainder_ ? ", drop_remainder)" : ")");
  }
  StageTraits traits() const override {
    return {.source = StageTraits::Source::Inputs, .rows = StageTraits::Rows::Many, .runs_functions = false};
  }
  Cardinality cardinality() const override {
    return input()->cardinality().is_infinite() ? Cardinality::infinite() : Cardinality::unknown();
  }
  ElementSpec element_spec() const override {
    const ElementSpec spec = input()->element_spec();
    return with_rows_of(spec, rebatched_shapes(shapes_of(spec), sizes_, drop_remainder_));
  }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<RebatchIterator>(rows_of_batches(*input(), context),
                                             BalancedCutter(sizes_, drop_remainder_),
                                             std::ranges::find(sizes_, 0) != sizes_.end());
  }

 private:
  std::vector<std::int64_t> sizes_;
  bool drop_remainder_;
};

}  // namespace

StagePtr make_rebatch(StagePtr batches, std::vector<std::int64_t> sizes, bool drop_remainder) {
  return std::make_shared<RebatchStage>(std::move(batches), std::move(sizes), drop_remainder);
}

}  // namespace lockstep::data
