#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Changes an element in place.
using MapFunction = std::function<void(Element&)>;
/// The same, with a key for random numbers: one for each (seed, pass, row), whichever thread computes it.
using KeyedMapFunction = std::function<void(Element&, std::uint64_t key)>;

/// How a `map` runs.
struct MapOptions {
  /// Threads of the pipeline's own that compute at the same time; 0 computes on the thread that asks for elements.
  int parallel_calls = 0;
  /// Whether results keep the order of the input. Without, a slow element does not hold up others, and positions
  /// cannot be saved.
  bool ordered = true;
  /// What the results look like, given what the inputs look like; without it only what their type says is known.
  std::function<ElementSpec(const ElementSpec&)> spec = nullptr;
  std::string name = {};  ///< in messages and reports
  /// Of `map_with_random`; without it from the job's seed and the place in the pipeline.
  std::optional<std::uint64_t> seed = std::nullopt;
};

class LOCKSTEP_EXPORT MapStage final : public Stage {
 public:
  /// `result`: what the type of the results says about them.
  MapStage(StagePtr input, MapFunction function, ElementSpec result, MapOptions options);
  MapStage(StagePtr input, KeyedMapFunction function, ElementSpec result, MapOptions options);

  std::string_view kind() const override { return options_.parallel_calls > 0 ? "parallel_map" : "map"; }
  std::string describe() const override { return description_; }
  std::string identity() const override { return identity_; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return input()->cardinality(); }
  ElementSpec element_spec() const override;
  std::optional<std::string> position_obstacle() const override;

  const MapOptions& options() const { return options_; }
  /// Computes one element. An exception gets the stage's name.
  void run(Element& element, std::uint64_t pass_key, std::int64_t row) const;
  /// What the keys of this pass's rows are made from, and what the input is started with.
  std::uint64_t pass_key(const IterationContext& context) const;
  IterationContext context_below(const IterationContext& context) const;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  void check_and_describe();

  MapFunction function_;
  KeyedMapFunction keyed_;  // one of the two is set
  ElementSpec result_;
  MapOptions options_;
  std::string description_;
  std::string identity_;
};

/// `map` with parallel calls. See parallel_map.cpp.
IteratorPtr make_parallel_map_iterator(std::shared_ptr<const MapStage> stage, const IterationContext& context,
                                       std::uint64_t pass_key, const IterationContext& below);

}  // namespace lockstep::data
