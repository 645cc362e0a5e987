#pragma once

#include "lockstep/strategy/strategy.h"

namespace lockstep {

/// The strategy of programs that have none: one replica, which is the calling thread. There is one for the process.
LOCKSTEP_EXPORT Strategy& default_strategy();

}  // namespace lockstep
