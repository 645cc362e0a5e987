#pragma once

#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {

/// `map` and `map_with_random`, with or without parallel calls.
class MapStage final : public StageOf<MapStage> {
 public:
  /// One of the two functions is set.
  MapStage(StagePtr input, MapFunction function, KeyedMapFunction keyed, ElementSpec result, MapOptions options);

  std::string_view kind() const override { return is_parallel() ? "parallel_map" : "map"; }
  std::string describe() const override { return description_; }
  std::string identity() const override { return identity_; }
  StageTraits traits() const override;
  Cardinality cardinality() const override { return input()->cardinality(); }
  ElementSpec element_spec() const override;
  std::optional<std::string> position_obstacle() const override;
  IteratorPtr make_batch_iterator(const IterationContext& context, const BatchShape& shape,
                                  const std::string& where) const override;
  void describe_to(StageCounters& counters) const override;

  const MapOptions& options() const { return options_; }
  /// Computes one element. An exception gets the stage's name.
  void run(Element& element, std::uint64_t pass_key, std::int64_t row) const;
  /// What the keys of this pass's rows are made from, and what the input is started with.
  std::uint64_t pass_key(const IterationContext& context) const;
  IterationContext context_below(const IterationContext& context) const;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  bool is_parallel() const { return options_.parallel_calls > 0; }
  std::string text(bool with_calls) const;

  MapFunction function_;
  KeyedMapFunction keyed_;
  ElementSpec result_;
  MapOptions options_;
  std::string description_;
  std::string identity_;
};

/// `map` with parallel calls; see parallel_map.cpp.
IteratorPtr make_parallel_map_iterator(std::shared_ptr<const MapStage> stage, const IterationContext& context);

/// Batches of the results of a `map` with parallel calls, in one step: the thread that computes a row also puts it into
/// the batch. The same batches as from the two stages one after the other; see mapped_batch.cpp.
IteratorPtr make_mapped_batch_iterator(std::shared_ptr<const MapStage> map, const IterationContext& context,
                                       const BatchShape& shape, std::string where);

}  // namespace lockstep::data
