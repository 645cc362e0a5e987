#pragma once

/// TensorFlow 1.11's `contrib.distribute` with its towers: `#include <lockstep/contrib.h>`.

#include "lockstep/contrib/multi_step_context.h"
#include "lockstep/contrib/tower_values.h"
#include "lockstep/contrib/variable_aggregation.h"
