#include "lockstep/data/iterators.h"

// Stages that declare properties of the elements and pass them on unchanged.
namespace lockstep::data {
namespace {

/// Each excess element is an error in its place; an early end is one error.
class AssertCardinalityIterator final : public ElementIterator {
 public:
  AssertCardinalityIterator(IteratorPtr input, Cardinality expected) : input_(std::move(input)), expected_(expected) {}

  bool next(Element& element) override {
    if (ended_) return false;
    ++count_;  // counts even if it fails
    if (!input_->next(element)) {
      --count_;
      ended_ = true;
      if (is_too_few()) fail("fewer", "");
      return false;
    }
    if (expected_.is_known() && count_ > expected_.value()) fail("more", "at least ");
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    if (ended_) return 0;
    const std::int64_t skipped = input_->skip(count);
    count_ += skipped;
    if (skipped == count) return skipped;
    ended_ = true;
    return skipped + (is_too_few() ? 1 : 0);
  }

 private:
  bool is_too_few() const { return expected_.is_infinite() || (expected_.is_known() && count_ < expected_.value()); }

  [[noreturn]] void fail(const char* how_many, const char* at_least) const {
    throw FailedPrecondition(errors::kCardinality,
                             {.what = str("the dataset has ", how_many, " elements than assert_cardinality promised"),
                              .where = "assert_cardinality",
                              .seen = str("promised ", to_string(expected_), ", found ", at_least, count_),
                              .help = "call assert_cardinality with the number of elements that there are"});
  }

  IteratorPtr input_;
  Cardinality expected_;
  std::int64_t count_ = 0;
  bool ended_ = false;
};

}  // namespace

StagePtr make_assert_cardinality(StagePtr input, Cardinality expected) {
  return make_stage({std::move(input)}, {.kind = "assert_cardinality",
                                         .text = str("assert_cardinality(", to_string(expected), ")"),
                                         .traits = {.source = StageTraits::Source::Inputs,
                                                    .elements = StageTraits::Elements::Same,
                                                    .asserts_count = true},
                                         .cardinality = [expected](const Stage&) { return expected; },
                                         .reliability = [](const Stage&) { return Reliability::Promised; },
                                         .iterate = over_input<AssertCardinalityIterator>(expected)});
}

StagePtr make_with_options(StagePtr input, DatasetOptions options) {
  return make_stage({std::move(input)},
                    {.kind = "with_options",
                     .text = str("with_options(auto-shard ", lockstep::to_string(options.auto_shard_policy), ")"),
                     .identity = "",
                     .traits = {.source = StageTraits::Source::Inputs,
                                .elements = StageTraits::Elements::Same,
                                .passes_over = true,
                                .runs_functions = false,
                                .policy = options.auto_shard_policy},
                     .rows = &Stage::row_source,
                     .order = &Stage::make_index_iterator,
                     .iterate = &Stage::iterate});
}

}  // namespace lockstep::data
