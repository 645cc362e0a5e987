#pragma once

#include <string>

#include "lockstep/base/export.h"

namespace lockstep {

/// A floating-point number with the fewest digits that round-trip, as numpy prints it: "1.0", "0.1", "1e-05", "inf".
/// From `exponent_from` on, and below 0.0001, it has an exponent.
LOCKSTEP_EXPORT std::string float_text(double value, double exponent_from = 1e16);
LOCKSTEP_EXPORT std::string float_text(float value);

}  // namespace lockstep
