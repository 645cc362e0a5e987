#pragma once

#include "lockstep/data/stages/map.h"

namespace lockstep::data {

/// Batches of the results of a `map` with parallel calls, in one step: the thread that computes a row also puts it into
/// the batch. The same batches as from the two stages one after the other.
IteratorPtr make_mapped_batch_iterator(std::shared_ptr<const MapStage> map, const IterationContext& context,
                                       std::int64_t size, bool drop_remainder, std::string where);

}  // namespace lockstep::data
