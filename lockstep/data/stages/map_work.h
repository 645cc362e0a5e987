#pragma once

#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {

/// What `map` and `map_with_random` compute. Shared by the iterators of a stage and their threads.
struct MapWork {
  KeyedMapFunction function;
  bool is_random = false;
  MapOptions options;
  std::string stage;  ///< for messages

  /// Computes one element. An exception gets the stage's name.
  void run(Element& element, std::uint64_t pass_key, std::int64_t row) const;
  /// What the keys of this pass's rows are made from, and what the input is started with.
  std::uint64_t pass_key(const IterationContext& context) const;
  IterationContext context_below(const IterationContext& context) const;
};
using MapWorkPtr = std::shared_ptr<const MapWork>;

/// `map` with parallel calls.
IteratorPtr make_parallel_map_iterator(MapWorkPtr map, const Stage& input, const IterationContext& context);

/// Batches of the results of a `map` with parallel calls, in one step: the thread that computes a row also puts it into
/// the batch. The same batches as from the two stages one after the other.
IteratorPtr make_mapped_batch_iterator(MapWorkPtr map, const Stage& input, const IterationContext& context,
                                       const BatchShape& shape, std::string where);

}  // namespace lockstep::data
