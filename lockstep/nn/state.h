#pragma once

#include <memory>

#include "lockstep/base/export.h"
#include "lockstep/strategy/snapshot.h"

// What `ls::capture` and `ls::restore` take of a training; see strategy/snapshot.h.
namespace lockstep {

class GradScaler;
class MirroredOptimizerBase;
struct PlateauSchedule;
template <class M>
class MirroredModule;

namespace detail {

class ModuleCore;

LOCKSTEP_EXPORT std::shared_ptr<Stateful> state_of_model(std::shared_ptr<ModuleCore> model);

}  // namespace detail

/// The weights, and the buffers of each replica. Restoring to another number of replicas gives all of them the buffers that
/// `model.named_buffers()` had returned.
template <class M>
std::shared_ptr<Stateful> state_of(const MirroredModule<M>& model) {
  return detail::state_of_model(model.core());
}

/// The options of each parameter group, learning rates among them, the numbers of steps, and what the optimizer remembers. What
/// `set_*` has set is not captured, except for the learning rate. Throws while a window of `set_accumulate` is open. Restoring
/// drops gradients; an optimizer whose update has failed can be used again once its model is restored too.
LOCKSTEP_EXPORT std::shared_ptr<Stateful> state_of(const MirroredOptimizerBase& optimizer);

/// The scale and the number of good steps. The scaler must outlive the result, as the schedule must.
LOCKSTEP_EXPORT std::shared_ptr<Stateful> state_of(GradScaler& scaler);
/// What the schedule has seen. Schedules that are functions of the step have no state.
LOCKSTEP_EXPORT std::shared_ptr<Stateful> state_of(PlateauSchedule& schedule);

}  // namespace lockstep
