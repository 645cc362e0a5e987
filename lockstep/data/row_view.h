#pragma once

#include <cstdint>

#include "lockstep/data/element.h"

namespace lockstep::data {

/// Row i of a batch that nobody else sees; see own_row. What `element` held before is dropped.
void row_view(const Element& batch, std::int64_t i, Element& element);

}  // namespace lockstep::data
