#pragma once

#include <string>

#include "lockstep/base/export.h"

namespace lockstep {

/// A floating-point number with as few digits as give it back, as Python prints it: "1.0", "0.1", "1e-05", "inf".
LOCKSTEP_EXPORT std::string float_text(double value);
LOCKSTEP_EXPORT std::string float_text(float value);

}  // namespace lockstep
