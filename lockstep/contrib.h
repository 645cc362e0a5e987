#pragma once

/// TensorFlow 1.11's `contrib.distribute` with its towers: `#include <lockstep/contrib.h>`.

#include "lockstep/contrib/cross_tower_ops.h"
#include "lockstep/contrib/distribution_strategy.h"
#include "lockstep/contrib/loss_reduction.h"
#include "lockstep/contrib/mirrored_strategy.h"
#include "lockstep/contrib/multi_step_context.h"
#include "lockstep/contrib/tower_context.h"
#include "lockstep/contrib/tower_dataset.h"
#include "lockstep/contrib/tower_local_variable.h"
#include "lockstep/contrib/tower_values.h"
#include "lockstep/contrib/variable_aggregation.h"
