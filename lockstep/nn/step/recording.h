#pragma once

#include <cstddef>
#include <memory>

// What an optimizer does where its step is recorded as a CUDA graph (strategy/captured_step.h).
namespace lockstep::detail {

class ModuleCore;
struct OptimizerCore;
struct ReplicaPart;

/// Replica `k` uses this model in a step that may be recorded: a change of its mode or memory ends the record. `alive` ends with
/// the model.
void note_model_of_step(const ModuleCore& module, std::size_t k, const std::weak_ptr<const void>& alive);

bool is_recording(const ModuleCore& module);
bool is_recording(const OptimizerCore& core);
/// Throws CannotRecord while a step is recorded.
void refuse_if_recording(const OptimizerCore& core, const char* why);
/// The same where the optimizer's class or its settings need the host in every step.
void refuse_unrecordable(const OptimizerCore& core);

/// A step of this replica has been started: counts it, or leaves that to each replay where it is recorded.
void count_step(OptimizerCore& core, ReplicaPart& mine);

}  // namespace lockstep::detail
