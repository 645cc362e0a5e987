#pragma once

#include <memory>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/nn/step_observer.h"

// Observers that detect mistakes in the program. They only diagnose: no step depends on them.
namespace lockstep::detail {

using StepObservers = std::vector<std::shared_ptr<StepObserver>>;

/// Throws DataLoss if the weights or states of replicas or workers differ (set_digest).
LOCKSTEP_EXPORT std::shared_ptr<class Drift> make_drift(const OptimizerCore& core);
/// Throws if a model's parameters are no longer those it was made with.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_changed_module(const OptimizerCore& core);
/// Warns if gradients were changed between backward and the step; throws if reduced ones were.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_changed_gradients(const OptimizerCore& core);
/// Throws or warns if a loss does not fit the optimizer's settings.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_unfit_losses(const OptimizerCore& core);
/// Warns of gradients that existed before the step's first backward.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_leftover_gradients(const OptimizerCore& core);
/// Warns if average_loss was given different sizes on replicas or workers.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_different_sizes(const OptimizerCore& core);
/// Warns of settings that do not apply to how the program takes steps.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_unused_settings(const OptimizerCore& core);
/// Warns of a step without any gradient.
LOCKSTEP_EXPORT std::shared_ptr<StepObserver> make_unreached_parameters(const OptimizerCore& core);

}  // namespace lockstep::detail
