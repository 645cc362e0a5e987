#pragma once

#include <optional>
#include <string>

#include "lockstep/nn/optimizer_settings.h"

namespace lockstep::detail {

/// Who multiplies the loss by the scale of a GradScaler, and divides its gradients by it.
enum class ScaleBy { Nobody, Host, Device };

/// What the optimizer's class can do by itself, with the gradients of one step.
struct UpdateTraits {
  bool adds_up = false;  ///< a fused update: reads the gradients of all replicas, sums and updates in one pass
  bool checks = false;   ///< leaves weights as they are if a sum is not finite, without asking the host
  bool clips = false;    ///< clips by norm without asking the host
};

/// The call that a step begins with.
struct StepRequest {
  bool has_workers = false;  ///< replicas of other workers take part
  bool in_parts = false;     ///< reduce_gradients: the program may look at the sums before it calls step
  ScaleBy scale = ScaleBy::Nobody;
};

/// How a step gets from gradients to weights.
struct StepPlan {
  /// Who adds up a segment: the replica that owns it, its update, or the exchange between workers.
  enum class Sum { Owner, Update, Wire };
  enum class Finite { NotChecked, Host, Device };

  Sum sum = Sum::Owner;
  bool leaves_to_update = false;  ///< no sum is written for the owner: the update reads what the reduction has found
  Finite finite = Finite::NotChecked;
  ScaleBy unscale = ScaleBy::Nobody;  ///< on the host with a finite check of its own
  std::optional<double> clip_norm;
  std::optional<double> clip_value;
  bool clips_on_device = false;  ///< by norm
  bool in_parts = false;         ///< the program gets at the sums between its calls
  bool is_one_pass = false;      ///< nothing is decided between sum and update: both in one meeting

  bool operator==(const StepPlan&) const = default;
};

StepPlan plan_step(const OptimizerSettings& settings, const StepRequest& request, const UpdateTraits& update);

/// "sum: by the update; finite: not checked; one meeting"
std::string to_string(const StepPlan& plan);

}  // namespace lockstep::detail
