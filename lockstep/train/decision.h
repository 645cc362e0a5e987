#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::train {

/// What a callback asks of the loop. The loop combines the decisions of all callbacks of all workers and acts on the result, so
/// that every worker does the same at the same step.
///
///     return {.stop = true, .reason = "val_loss has not improved for 5 epochs"};
struct Decision {
  bool stop = false;       ///< end the training here; the epoch's end and the training's end are still called
  bool end_epoch = false;  ///< skip the rest of this epoch; validation and later epochs follow
  bool save = false;       ///< call `save` of every callback on every worker
  bool save_self = false;  ///< call `save` of the callback that asks for it, on every worker
  std::optional<double> learning_rate = {};  ///< from the next step on, for all parameter groups
  std::string reason = {};                   ///< for people: why

  /// Whether it changes nothing.
  bool is_nothing() const { return !stop && !end_epoch && !save && !save_self && !learning_rate; }
  bool operator==(const Decision&) const = default;
};

/// The decision that holds when these were made, in the order of workers and of callbacks: a flag that any of them sets is
/// set, and the first learning rate counts. Reasons are joined, each of them once.
LOCKSTEP_EXPORT Decision combine(const std::vector<Decision>& decisions);

/// "stop (reason)", "save, learning rate 0.01"; empty for nothing.
LOCKSTEP_EXPORT std::string to_string(const Decision& decision);

}  // namespace lockstep::train
