#pragma once

#include <memory>

#include "lockstep/data/iterator.h"
#include "lockstep/data/stage_meter.h"

namespace lockstep::data {

/// The same elements, with time and rows counted for `stage`.
IteratorPtr make_metered_iterator(IteratorPtr measured, const Stage& stage, std::shared_ptr<StageCounters> counters);

}  // namespace lockstep::data
