#pragma once

#include <memory>

#include "lockstep/nn/step_observer.h"

namespace lockstep::detail {

/// Reports the steps of this process to `lockstep tune`, and ends the process after the time that was asked for. A step is an update by
/// the first optimizer that makes one, so a program with two, or with runs that only evaluate, is timed by whole steps.
std::shared_ptr<StepObserver> make_tuned_steps();

}  // namespace lockstep::detail
