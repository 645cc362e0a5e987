#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Changes an element in place.
using MapFunction = std::function<void(Element&)>;

/// How a `map` runs.
struct MapOptions {
  /// Threads of the pipeline's own that compute at the same time; 0 computes on the thread that asks for elements.
  int parallel_calls = 0;
  /// Whether results keep the order of the input. Without, a slow element does not hold up others, and positions
  /// cannot be saved.
  bool ordered = true;
  /// What the results look like, given what the inputs look like; without it nothing is known about them.
  std::function<ElementSpec(const ElementSpec&)> spec = nullptr;
  std::string name = "";  ///< in messages and reports
};

class LOCKSTEP_EXPORT MapStage final : public Stage {
 public:
  /// `result`: what the type of the results says about them.
  MapStage(StagePtr input, MapFunction function, ElementSpec result, MapOptions options);

  std::string_view kind() const override { return options_.parallel_calls > 0 ? "parallel_map" : "map"; }
  std::string describe() const override { return description_; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return input()->cardinality(); }
  ElementSpec element_spec() const override;
  std::optional<std::string> position_obstacle() const override;

  const std::string& description() const { return description_; }
  const MapFunction& function() const { return function_; }
  const MapOptions& options() const { return options_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  MapFunction function_;
  ElementSpec result_;
  MapOptions options_;
  std::string description_;
};

}  // namespace lockstep::data
