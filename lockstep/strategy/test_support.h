#pragma once

#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"
#include "tests/support/watchdog.h"

// What the tests of this floor share.
namespace lockstep {
using Seen = SeenError;
}
