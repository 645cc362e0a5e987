#pragma once

#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/element_spec.h"
#include "lockstep/data/static_shape.h"

namespace lockstep::data {

/// The shapes of the elements as far as they are known; nothing known counts as one component of unknown shape.
LOCKSTEP_EXPORT std::vector<StaticShape> shapes_of(const ElementSpec& spec);

/// `spec` with the first dimension of each component taken from `shapes`.
LOCKSTEP_EXPORT ElementSpec with_rows_of(ElementSpec spec, const std::vector<StaticShape>& shapes);

}  // namespace lockstep::data
