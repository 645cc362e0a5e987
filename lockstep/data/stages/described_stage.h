#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/iterators.h"
#include "lockstep/data/stage.h"

namespace lockstep::data {

/// All that a stage is, in one place, where that takes no class of its own. Its functions are given the input, or the
/// stage itself if it has none or takes any number of them. What is left out is as in the input.
struct StageDescription {
  std::string kind;
  std::string text = kind;      ///< Stage::describe
  std::string identity = text;  ///< Stage::identity
  StageTraits traits = {};
  bool takes_any_number = false;  ///< of inputs
  std::function<Cardinality(const Stage& below)> cardinality = &Stage::cardinality;
  std::function<Trust(const Stage& below)> trust = nullptr;             ///< else as far as the inputs are trusted
  std::function<Cardinality(const Stage& below)> total_rows = nullptr;  ///< else, or if unknown, as the spec says
  std::function<ElementSpec(const Stage& below)> spec = &Stage::element_spec;
  std::optional<std::string> position_obstacle = std::nullopt;
  std::function<RowSourcePtr(const Stage& below)> rows = nullptr;  ///< Stage::row_source
  /// Stage::make_index_iterator, where there are `rows`.
  std::function<IndexIteratorPtr(const Stage& below, const IterationContext&)> order = nullptr;
  std::function<IteratorPtr(const Stage& below, const IterationContext&)> iterate;
};

StagePtr make_stage(std::vector<StagePtr> inputs, StageDescription description);

/// For `iterate`: an iterator of this class, made of the input's and of these arguments.
template <class Iterator, class... Arguments>
auto over_input(Arguments... arguments) {
  return [=](const Stage& below, const IterationContext& context) {
    return std::make_unique<Iterator>(below.iterate(context), arguments...);
  };
}

/// For `iterate`: `next(elements, element)` reads the input's elements and writes the next one; false at the end.
template <class Next>
auto by_function(Next next) {
  return [next](const Stage& below, const IterationContext& context) {
    return make_function_iterator(
        [elements = below.iterate(context), next](Element& element) mutable { return next(*elements, element); });
  };
}

/// For `cardinality`: of some of the elements.
inline Cardinality unknown_unless_empty(const Stage& below) {
  return below.cardinality() == Cardinality(0) ? Cardinality(0) : Cardinality::unknown();
}

/// The iterators of a stage with several inputs.
std::vector<IteratorPtr> iterate_inputs(const Stage& stage, const IterationContext& context);

/// For the spec of a stage with several inputs: what is true of the elements of all of them. InvalidArgument if they are
/// known not to fit into one dataset: `where` names the stage.
ElementSpec common_spec(const std::vector<StagePtr>& datasets, const std::string& where);

}  // namespace lockstep::data
