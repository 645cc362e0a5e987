#pragma once

#include <optional>
#include <string>

#include "lockstep/nn/optimizer_settings.h"

namespace lockstep::detail {

/// Where the loss is multiplied by a GradScaler's scale, and its gradients divided by it.
enum class ScaleBy { Nobody, Host, Device };

/// Capabilities of the optimizer's class for the gradients of one step.
struct UpdateTraits {
  bool adds_up = false;  ///< a fused update: reads the gradients of all replicas, sums and updates in one pass
  bool checks = false;   ///< leaves weights unchanged if a sum is not finite, without asking the host
  bool clips = false;    ///< clips by norm without asking the host
};

/// The call that starts a step.
struct StepRequest {
  bool has_workers = false;  ///< replicas of other workers take part
  bool in_parts = false;     ///< reduce_gradients: the program may read the sums before it calls step
  ScaleBy scale = ScaleBy::Nobody;
};

/// How a step gets from gradients to weights.
struct StepPlan {
  /// Where a segment is summed: by the replica that owns it, by its update, or in the exchange between workers.
  enum class Sum { Owner, Update, Wire };
  enum class Finite { NotChecked, Host, Device };

  Sum sum = Sum::Owner;
  bool leaves_to_update = false;  ///< no sum is written for the owner: the update reads the reduction's inputs
  Finite finite = Finite::NotChecked;
  ScaleBy unscale = ScaleBy::Nobody;  ///< on the host it includes a finite check
  std::optional<double> clip_norm;
  std::optional<double> clip_value;
  bool clips_on_device = false;  ///< by norm
  bool in_parts = false;         ///< the program can access the sums between its calls
  bool is_one_pass = false;      ///< no decision between sum and update: both in one meeting

  bool operator==(const StepPlan&) const = default;
};

StepPlan plan_step(const OptimizerSettings& settings, const StepRequest& request, const UpdateTraits& update);

/// "sum: by the update; finite: not checked; one meeting"
std::string to_string(const StepPlan& plan);

}  // namespace lockstep::detail
