#include "lockstep/data/distribute/ceil_split.h"

#include <algorithm>

#include "lockstep/base/logging.h"
#include "lockstep/data/iterators.h"

namespace lockstep::data {
namespace {

/// The rows of one component; the components of a batch may differ in their number.
std::int64_t component_rows(const Component& component) {
  if (const auto rows = rows_of(component)) return *rows;
  throw InvalidArgument(errors::kShape, {.what = "an element holds a scalar, which cannot be shared out among replicas",
                                         .where = "splitting a batch",
                                         .help = "call batch() before distribute(), or use distribute_from_function"});
}

class CeilSplitIterator final : public ElementIterator {
 public:
  CeilSplitIterator(IteratorPtr batches, int pieces, std::shared_ptr<CutWarnings> warnings)
      : batches_(std::move(batches)), pieces_(pieces), next_(pieces), warnings_(std::move(warnings)) {}

  bool next(Element& element) override {
    if (next_ == pieces_) {
      if (!batch_.read(*batches_)) return false;
      next_ = 0;
      if (warnings_ && !batch_.error) warn_before_cut(batch_.element, *warnings_);
    }
    ++next_;
    if (batch_.error) std::rethrow_exception(batch_.error);  // rethrown for each piece of a failed batch
    element = piece_of(SplitRule::CeilSplit, batch_.element, pieces_, next_ - 1);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = std::min<std::int64_t>(count, pieces_ - next_);
    next_ += static_cast<int>(skipped);
    skipped += batches_->skip((count - skipped) / pieces_) * pieces_;
    return skipped + ElementIterator::skip(count - skipped);
  }

 private:
  IteratorPtr batches_;
  int pieces_;
  int next_;
  std::shared_ptr<CutWarnings> warnings_;
  Place batch_;
};

}  // namespace

StagePtr make_ceil_split(StagePtr batches, int pieces, std::shared_ptr<CutWarnings> warnings) {
  if (pieces < 1)
    refuse_option("ceil_split", str("the number of pieces of a batch must be >= 1, got ", pieces),
                  "give the number of replicas: each gets a piece");
  return make_stage(
      {std::move(batches)},
      {.kind = "ceil_split",
       .text = str("ceil_split(", pieces, ")"),
       .traits = {.source = StageTraits::Source::Inputs, .rows = StageTraits::Rows::Many, .runs_functions = false},
       .cardinality = [pieces](const Stage& below) { return multiplied(below.cardinality(), pieces); },
       .spec = [pieces](const Stage& below) { return below.element_spec().ceil_split(pieces); },
       .iterate = over_input<CeilSplitIterator>(pieces, std::move(warnings))});
}

void warn_before_cut(const Element& batch, CutWarnings& warnings) {
  for (const Component& component : batch.components) {
    const std::int64_t first = component_rows(batch.components.front()), rows = component_rows(component);
    if (rows == first || !warnings.of_unequal_rows.exchange(false)) continue;
    say_warning(str("distribute: the components of a batch have ", first, " and ", rows,
                    " rows. Each is cut by itself, so rows that belong together may go to different replicas."));
  }
  if (warnings.of_single_rows && warnings.of_single_rows.exchange(false))
    say_warning(single_rows_warning(describe(batch)));
}

std::string single_rows_warning(const std::string& element) {
  return str("distribute: the dataset was never batched, so each element, ", element,
             ", is cut along its first dimension: its features go to different replicas. Write .batch(N) before "
             "distribute, N being the number of rows of all replicas together.");
}

Element piece_of(SplitRule rule, const Element& batch, int pieces, int k) {
  return batch.mapped([&](const Component& component) {
    const RowRange rows = cut(rule, component_rows(component), pieces, k);
    return slice(component, rows.begin, rows.end);
  });
}

}  // namespace lockstep::data
