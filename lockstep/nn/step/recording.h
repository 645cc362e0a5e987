#pragma once

#include <cstddef>
#include <memory>

// How an optimizer records its step as a CUDA graph (strategy/captured_step.h).
namespace lockstep::detail {

class ModuleCore;
struct OptimizerCore;
struct ReplicaPart;

/// Replica `k` uses this model in a step that may be recorded: a change of its mode or memory invalidates the record.
/// `alive` expires with the model.
void note_model_of_step(const ModuleCore& module, std::size_t k, const std::weak_ptr<const void>& alive);

bool is_recording(const ModuleCore& module);
/// Throws CannotRecord while a step is recorded.
void refuse_if_recording(const OptimizerCore& core, const char* why);
/// Also throws, while a step is recorded, if the optimizer's class or its settings need the host in every step.
void refuse_unrecordable(const OptimizerCore& core);

/// A step of this replica was started in a run of a captured step: registers with the recorder what a replay needs and,
/// if the step is recorded, what a replay does instead.
void leave_to_recorder(OptimizerCore& core, ReplicaPart& mine);

}  // namespace lockstep::detail
