#pragma once

#include <string>

#include "lockstep/contrib.h"

/// Makes a mistake by its name, "unequal", "owners", or the name of a call that the second worker makes in a different
/// order, and prints the outcome.
void make_mistake(lockstep::contrib::MirroredStrategy& strategy, const std::string& name);
