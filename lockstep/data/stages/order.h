#pragma once

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// A stage that only chooses and orders the elements of its input. Over rows of a source it works on plain numbers, so
/// that `from_tensor_slices -> shuffle -> shard -> repeat -> batch` costs one gather per batch.
class OrderStage : public PassThroughStage {
 public:
  using PassThroughStage::PassThroughStage;
  RowSourcePtr row_source() const final { return input()->row_source(); }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const final {
    if (auto rows = row_source()) return make_row_iterator(std::move(rows), make_index_iterator(context));
    return make_element_iterator(context);
  }
  virtual IteratorPtr make_element_iterator(const IterationContext& context) const = 0;

  static StageTraits order_traits(StageTraits::Elements elements) {
    return {.source = StageTraits::Source::Inputs, .elements = elements, .passes_over = true, .runs_functions = false};
  }
};

/// One with a number of elements or passes; -1 means all, or for ever.
class CountedStage : public OrderStage {
 public:
  CountedStage(StagePtr input, std::string_view kind, std::int64_t count);

  std::string_view kind() const final { return kind_; }
  std::string describe() const override;  ///< "take(5)"

 protected:
  std::int64_t count() const { return count_; }

 private:
  std::string_view kind_;
  std::int64_t count_;
};

}  // namespace lockstep::data
