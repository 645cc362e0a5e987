#pragma once

/// The training loop: `#include <lockstep/train.h>` beside `<lockstep/lockstep.h>`.

#include "lockstep/nn/state.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/callbacks/checkpoints.h"
#include "lockstep/train/callbacks/ema.h"
#include "lockstep/train/callbacks/loggers.h"
#include "lockstep/train/callbacks/torch_scheduler.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/manager.h"
#include "lockstep/train/learning_rate_range.h"
#include "lockstep/train/loop.h"
#include "lockstep/train/losses.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/model.h"
#include "lockstep/train/select.h"
