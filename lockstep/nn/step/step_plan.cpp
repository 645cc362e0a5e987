#include "lockstep/nn/step/step_plan.h"

#include "lockstep/base/text.h"

namespace lockstep::detail {

StepPlan plan_step(const OptimizerSettings& settings, const StepRequest& request, const UpdateTraits& update) {
  StepPlan plan{.in_parts = request.in_parts};
  if (!plan.in_parts) {
    plan.clip_norm = settings.clip_global_norm;
    plan.clip_value = settings.clip_value;
    plan.clips_on_device = plan.clip_norm && update.clips;
  }
  // A GradScaler checks separately.
  const bool is_checked = settings.not_finite != NonFinitePolicy::Ignore && request.scale == ScaleBy::Nobody;
  const bool on_device = update.checks && (is_checked || request.scale == ScaleBy::Device);
  if (is_checked || on_device) plan.finite = on_device ? StepPlan::Finite::Device : StepPlan::Finite::Host;
  // A device that cannot skip the step by itself, for instance with sparse gradients, leaves the scale to the host.
  plan.unscale = request.scale == ScaleBy::Device && !on_device ? ScaleBy::Host : request.scale;

  const bool is_changed = plan.in_parts || plan.clip_norm || plan.clip_value || plan.unscale != ScaleBy::Nobody;
  plan.leaves_to_update = update.adds_up && !is_changed && plan.finite != StepPlan::Finite::Host;
  plan.is_one_pass = !is_changed && plan.finite == StepPlan::Finite::NotChecked;
  if (request.has_workers)
    plan.sum = StepPlan::Sum::Wire;
  else if (plan.leaves_to_update)
    plan.sum = StepPlan::Sum::Update;
  return plan;
}

std::string to_string(const StepPlan& plan) {
  const auto finite = [&] {
    switch (plan.finite) {
      case StepPlan::Finite::NotChecked: return "not checked";
      case StepPlan::Finite::Host: return "by the host";
      case StepPlan::Finite::Device: return "by the device";
    }
    return "";
  };
  std::string text = "sum: by the owner";
  if (plan.sum == StepPlan::Sum::Update) text = "sum: by the update";
  if (plan.sum == StepPlan::Sum::Wire)
    text = plan.leaves_to_update ? "sum: on the wire, read by the update" : "sum: on the wire";
  text += str("; finite: ", finite());
  if (plan.unscale != ScaleBy::Nobody)
    text += str("; unscale: by the ", plan.unscale == ScaleBy::Host ? "host" : "device");
  if (plan.clip_norm) text += str("; norm at most ", *plan.clip_norm, plan.clips_on_device ? ", on the device" : "");
  if (plan.clip_value) text += str("; elements at most ", *plan.clip_value);
  if (plan.in_parts) text += "; in parts";
  return text + (plan.is_one_pass ? "; one meeting" : "");
}

}  // namespace lockstep::detail
