#pragma once

#include <memory>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/nn/step_observer.h"

// Observers that look for mistakes of the program. They only diagnose: no step depends on them.
namespace lockstep::detail {

using StepObservers = std::vector<std::shared_ptr<StepObserver>>;

/// Throws DataLoss if replicas or workers hold different weights or states (set_digest).
LOCKSTEP_EXPORT std::shared_ptr<class Drift> make_drift(const OptimizerCore& core);
/// Throws if a model has other parameters than it was made with.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_changed_module(const OptimizerCore& core);
/// Warns if gradients were changed between backward and the step; throws if reduced ones were.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_changed_gradients(const OptimizerCore& core);
/// Throws and warns where a loss is not what the optimizer's settings need.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_unfit_losses(const OptimizerCore& core);
/// Warns of gradients that were there before the step's first backward.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_leftover_gradients(const OptimizerCore& core);
/// Warns if average_loss was given different sizes on replicas or workers.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_different_sizes(const OptimizerCore& core);
/// Warns of settings that do not apply to the way in which steps are taken.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_unused_settings(const OptimizerCore& core);
/// Warns of a step that no gradient has reached.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_unreached_parameters(const OptimizerCore& core);

}  // namespace lockstep::detail
