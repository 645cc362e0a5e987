#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

// Which checkpoints stay, and when one is due. Pure functions of what is there.
namespace lockstep::train {

/// Rules for which checkpoints are kept.
struct KeepOptions {
  int keep = 3;                  ///< newest checkpoints that stay; 0: all
  std::string best_metric = {};  ///< also keep the best by this metric, such as "val_loss"; empty: none
  bool highest_is_best = false;  ///< for accuracy and the like
  int keep_best = 1;             ///< how many of the best stay
  /// Newest checkpoints that keep the optimizer's state, which is most of the bytes; others can be evaluated, not
  /// resumed. At least 2, so that there is another if one is damaged; 0: all.
  int keep_optimizer = 0;
};

/// InvalidArgument if nothing can be kept by these options.
LOCKSTEP_EXPORT void require_valid(const KeepOptions& options);

namespace detail {

struct KeptCheckpoint {
  std::int64_t step = 0;
  std::optional<double> score = {};  ///< its value of the best metric
};

struct KeepPlan {
  std::vector<std::int64_t> remove = {};           ///< steps of checkpoints that go
  std::vector<std::int64_t> leave_optimizer = {};  ///< of those that stay without the optimizer's state

  bool operator==(const KeepPlan&) const = default;
};

/// `all`: oldest first. The newest one stays, whatever the options are.
KeepPlan plan_keeping(const std::vector<KeptCheckpoint>& all, const KeepOptions& options);

}  // namespace detail

/// When a checkpoint is due: after so many steps or so much time, whichever is first. Zero: never for this reason.
struct SaveInterval {
  std::int64_t steps = 0;  ///< training steps between two checkpoints
  double seconds = 0;      ///< time between two, on the chief's clock
};

/// `last_step` and `last_seconds`: of the last checkpoint, or where the training began. Steps count from 0, so that the same steps
/// are saved wherever a training was resumed.
LOCKSTEP_EXPORT bool is_due(const SaveInterval& interval, std::int64_t last_step, std::int64_t step,
                            double last_seconds, double seconds);

}  // namespace lockstep::train
