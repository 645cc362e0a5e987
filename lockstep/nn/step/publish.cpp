#include "lockstep/nn/step/publish.h"

#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/collect.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/recording.h"

namespace lockstep::detail {

void publish_step(OptimizerCore& core, ReplicaPart& mine) {
  count_step(core, mine);
  drop_gradients(core, mine);
  if (is_recording(core)) return;
  send_check(core, mine);
  for (const auto& observer : core.observers) observer->updated({core, mine});
}

}  // namespace lockstep::detail
