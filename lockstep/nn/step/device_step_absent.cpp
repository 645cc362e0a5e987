#include "lockstep/nn/step/device_step.h"

#include "lockstep/nn/step/loss_scale.h"
#include "lockstep/nn/step/updater.h"
#include "lockstep/strategy/gpu_not_built.h"

namespace lockstep::detail {

using gpu::throw_not_built;

bool has_device_update(const OptimizerCore&) { return false; }
bool has_device_sum(const at::Tensor&, std::size_t) { return false; }
void settle_counts(const OptimizerCore&, ReplicaPart&) {}
void settle_checks(const OptimizerCore&, ReplicaPart&) {}
at::Tensor counts_on_device(const ReplicaPart&) { return {}; }
void send_check(const OptimizerCore&, ReplicaPart&) {}
void receive_check(const OptimizerCore&, ReplicaPart&) {}
void send_options_to_device(const OptimizerCore&, ReplicaPart&) { throw_not_built(); }
void note_replay_on_device(const OptimizerCore&, ReplicaPart&, bool) { throw_not_built(); }
bool can_scale_on_device(const OptimizerCore&, const at::Tensor&) { return false; }
void send_scale(LossScale&, at::Device) { throw_not_built(); }
void fetch_scale(LossScale&) {}
at::Tensor scale_on_device(LossScale&, const at::Tensor&) { throw_not_built(); }
void sum_on_device(const std::vector<DeviceSum>&, std::int64_t) { throw_not_built(); }
std::unique_ptr<Updater> make_device_updater(OptimizerCore&) { throw_not_built(); }
void sum_squares_on_device(const at::Tensor&, double*, std::size_t) { throw_not_built(); }

}  // namespace lockstep::detail
