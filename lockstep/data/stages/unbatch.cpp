#include <algorithm>

#include "lockstep/data/place.h"
#include "lockstep/data/stage.h"
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
    std::int64_t skipped = 0;
    while (skipped < count) {
      try {
        if (!load()) break;
      } catch (...) {  // a batch that fails has one place
        rethrow_if_fatal(std::current_exception());
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

class UnbatchStage final : public StageOf<UnbatchStage> {
 public:
  explicit UnbatchStage(StagePtr input) : StageOf({std::move(input)}) {
    require_rows(this->input()->element_spec(), "unbatch");
  }

  std::string_view kind() const override { return "unbatch"; }
  StageTraits traits() const override {
    return {.source = StageTraits::Source::Inputs, .rows = StageTraits::Rows::One, .runs_functions = false};
  }
  Cardinality cardinality() const override {
    const Cardinality batches = input()->cardinality();
    if (!batches.is_known() || batches == Cardinality(0)) return batches;
    const ElementSpec spec = input()->element_spec();
    if (!spec.components || spec.components->empty()) return Cardinality::unknown();
    const PartialShape& shape = spec.components->front().shape;
    const bool is_known = shape.has_rank() && shape.rank() > 0 && shape.dim(0) != PartialShape::kUnknown;
    return is_known ? multiplied(batches, shape.dim(0)) : Cardinality::unknown();
  }
  /// A batch that fails is one place, whatever number of rows it would have had.
  Trust trust() const override { return std::min(Trust::Promised, input()->trust()); }
  ElementSpec element_spec() const override { return input()->element_spec().unbatched(); }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<UnbatchIterator>(input()->iterate(context));
  }
};

}  // namespace

StagePtr make_unbatch(StagePtr input) { return std::make_shared<UnbatchStage>(std::move(input)); }

}  // namespace lockstep::data
