#include <algorithm>

#include "lockstep/data/iterators.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {
namespace {

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
