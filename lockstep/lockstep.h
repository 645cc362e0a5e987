#pragma once

/// Everything a training program needs: `#include <lockstep/lockstep.h>`.

#include "lockstep/base/deadline.h"
#include "lockstep/base/device_name.h"
#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "lockstep/strategy/replica_context.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/variable.h"
#include "lockstep/values/indexed_slices.h"
#include "lockstep/values/local_results.h"
#include "lockstep/values/per_replica.h"
#include "lockstep/values/structure.h"
#include "lockstep/version.h"
