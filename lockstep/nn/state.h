#pragma once

#include <memory>

#include "lockstep/base/export.h"
#include "lockstep/strategy/snapshot.h"

// The parts of a training for `ls::capture` and `ls::restore`; see strategy/snapshot.h.
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

/// The weights, and the buffers of each replica. Restoring to another number of replicas gives all of them the merged
/// buffers of `model.named_buffers()`.
template <class M>
std::shared_ptr<Stateful> state_of(const MirroredModule<M>& model) {
  return detail::state_of_model(model.core());
}

/// The options of each parameter group, including learning rates, the numbers of steps, and the optimizer's state. Of
/// the settings of `set_*` only the learning rate is captured. Throws while a window of `set_accumulate` is open.
/// Restoring drops gradients; after a failed update the optimizer works again once its model is restored too.
LOCKSTEP_EXPORT std::shared_ptr<Stateful> state_of(const MirroredOptimizerBase& optimizer);

/// The scale and the number of good steps. The scaler must outlive the result, as the schedule must.
LOCKSTEP_EXPORT std::shared_ptr<Stateful> state_of(GradScaler& scaler);
/// The observations of the schedule. Schedules that are functions of the step have no state.
LOCKSTEP_EXPORT std::shared_ptr<Stateful> state_of(PlateauSchedule& schedule);

}  // namespace lockstep
