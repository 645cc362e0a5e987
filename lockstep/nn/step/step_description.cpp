#include "lockstep/nn/step/step_description.h"

#include <torch/nn/module.h>

#include <cmath>
#include <limits>
#include <span>
#include <string_view>

#include "lockstep/base/fnv.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/torch_optimizers.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/values/float_text.h"

namespace lockstep::detail {
namespace {

constexpr double kUnset = std::numeric_limits<double>::quiet_NaN();

/// Visits the numeric settings, except for the options of groups.
void for_each_number(const OptimizerSettings& settings, FunctionRef<void(const char* name, double value)> see) {
  see("set_clip_global_norm", settings.clip_global_norm.value_or(kUnset));
  see("set_clip_value", settings.clip_value.value_or(kUnset));
  see("set_accumulate", settings.accumulate);
  see("set_digest, every", static_cast<double>(settings.digest.every));
  see("set_digest, buffers", settings.digest.buffers ? 1 : 0);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "none";
  const std::string text = float_text(value);
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

const char* name_of(NonFinitePolicy policy) {
  switch (policy) {
    case NonFinitePolicy::Ignore: return "Ignore";
    case NonFinitePolicy::Raise: return "Raise";
    case NonFinitePolicy::SkipStep: return "SkipStep";
  }
  return "unknown";
}

template <class T>
std::uint64_t mixed(std::uint64_t mark, const T& value) {
  return fnv1a(std::span<const T>(&value, 1), mark);
}

/// The current run's place.
BatchPlace place_of_batch() {
  const RunNotes* const notes = current_context()->notes;
  return notes != nullptr ? notes->rows.place : BatchPlace();
}

}  // namespace

std::uint64_t mark_of_settings(const OptimizerCore& optimizer) {
  std::uint64_t mark = 1;
  const auto add = [&](const char*, double value) { mark = mixed(mark, value); };
  for (const OptimizerGroup& group : optimizer.groups) for_each_option(*group.options, add);
  for_each_number(optimizer.settings, add);
  mark = mixed(mark, optimizer.settings.reduce_op);
  return mixed(mark, optimizer.settings.not_finite);
}

workers::Texts lines_of_settings(const OptimizerCore& optimizer) {
  workers::Texts lines;
  for (std::size_t g = 0; g < optimizer.groups.size(); ++g) {
    for_each_option(*optimizer.groups[g].options, [&](const char* name, double value) {
      lines.push_back(lockstep::str("group ", g, ", ", name, ": ", number_text(value)));
    });
  }
  for_each_number(optimizer.settings, [&](const char* name, double value) {
    lines.push_back(lockstep::str(name, ": ", number_text(value)));
  });
  lines.push_back(lockstep::str("set_reduce_op: ", to_string(optimizer.settings.reduce_op)));
  lines.push_back(lockstep::str("set_non_finite_policy: ", name_of(optimizer.settings.not_finite)));
  return lines;
}

std::uint64_t mark_of_call(const StepCall& call, ReduceOp op) {
  const std::string_view name = call.call;
  std::uint64_t mark = fnv1a(std::span<const char>(name.data(), name.size()));
  mark = mixed(mark, call.argument);
  mark = mixed(mark, op);
  const ReplicaPart& first = *call.optimizer->replicas[0];
  mark = mixed(mark, first.steps);
  const BatchPlace place = place_of_batch();
  mark = mixed(mixed(mark, place.pass), place.step);
  return mixed(mark, first.shown.modes);
}

workers::Texts lines_of_call(const StepCall& call, ReduceOp op) {
  workers::Texts lines{lockstep::str("call: ", call.call),
                       lockstep::str("loss scale, or mark of the gradients given: ", number_text(call.argument)),
                       lockstep::str("reduction: ", to_string(op)),
                       lockstep::str("updates made before: ", call.optimizer->replicas[0]->steps)};
  if (const BatchPlace place = place_of_batch(); place.step >= 0)
    lines.push_back(lockstep::str("batch given to run: number ", place.step, " of pass ", place.pass));
  const ModuleCore& module = *call.optimizer->module;
  for (const auto& parameter : module.parameters())
    lines.push_back(lockstep::str(parameter.name, ": ", parameter.leaves[0].requires_grad() ? "trained" : "frozen"));
  for (const auto& part : module.replica(0)->named_modules("", /*include_self=*/false))
    lines.push_back(lockstep::str(part.key(), ": ", part.value()->is_training() ? "in training mode" : "in eval mode"));
  return lines;
}

}  // namespace lockstep::detail
