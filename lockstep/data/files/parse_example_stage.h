#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/format/example_parser.h"
#include "lockstep/data/stage.h"

namespace lockstep::data {

/// What the parsed features become.
struct ParseTarget {
  bool batched = false;               ///< the input has batches of records (Strings), not single ones
  bool by_name = false;               ///< into a map with the features' names as keys
  std::optional<std::size_t> leaves;  ///< how many components the result's type has, if it says so
};

/// Features of serialized Examples as tensors. A batch of records becomes one tensor per feature in one go.
class LOCKSTEP_EXPORT ParseExampleStage final : public StageOf<ParseExampleStage> {
 public:
  /// `names`: the features in the order of the result's components; empty: all, sorted.
  ParseExampleStage(StagePtr input, const FeatureSpec& spec, std::vector<std::string> names, ParseTarget target);

  std::string_view kind() const override { return "parse_example"; }
  std::string describe() const override;
  StageTraits traits() const override {
    return {.source = StageTraits::Source::Inputs,
            .elements = StageTraits::Elements::Rewritten,
            .passes_over = true,
            .runs_functions = false};
  }
  Cardinality cardinality() const override { return input()->cardinality(); }
  ElementSpec element_spec() const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::shared_ptr<const ExampleParser> parser_;
  std::vector<std::size_t> order_;  // columns of the parser, as the result has them
  ParseTarget target_;
  SkeletonPtr skeleton_;
};

}  // namespace lockstep::data
