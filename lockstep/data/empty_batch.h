#pragma once

#include "lockstep/base/export.h"
#include "lockstep/data/element.h"
#include "lockstep/data/element_spec.h"

namespace lockstep::data {

/// A batch without rows, in memory of its own: as the spec says, or like `seen`, a batch without
/// rows, where that does not tell all. It has no components if nothing was seen either.
LOCKSTEP_EXPORT Element empty_batch(const ElementSpec& spec, const Element& seen);
/// Whether the spec says what elements are made of: kinds, types and ranks.
LOCKSTEP_EXPORT bool tells_all(const ElementSpec& spec);
/// A batch without its rows, in memory of its own; scalars become zeros.
LOCKSTEP_EXPORT Element without_rows(const Element& batch);

}  // namespace lockstep::data
