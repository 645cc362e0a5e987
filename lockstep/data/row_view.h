#pragma once

#include <cstdint>

#include "lockstep/data/element.h"

namespace lockstep::data {

/// Row i of a batch that nobody else sees, without the cost of an operator call: tensors of `element` share its memory.
void row_view(const Element& batch, std::int64_t i, Element& element);

}  // namespace lockstep::data
