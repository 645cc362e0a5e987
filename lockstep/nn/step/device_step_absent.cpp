#include "lockstep/nn/step/device_step.h"

#include "lockstep/base/error.h"

namespace lockstep::detail {
namespace {

[[noreturn]] void throw_not_built() {
  throw Internal(errors::kInternal, {.what = "a GPU was used in a build without LOCKSTEP_CUDA",
                                     .help = "this is a bug in Lockstep: please report it"});
}

}  // namespace

bool has_device_update(const OptimizerCore&) { return false; }
bool has_device_sum(const at::Tensor&, std::size_t) { return false; }
void leave_sums_to_device(ReplicaPart&) { throw_not_built(); }
void update_on_device(OptimizerCore&, ReplicaPart&) { throw_not_built(); }
void sum_on_device(const std::vector<DeviceSum>&, std::int64_t) { throw_not_built(); }
bool can_clip_on_device(const OptimizerCore&, const ReplicaPart&) { return false; }
void write_squares_on_device(OptimizerCore&, ReplicaPart&) { throw_not_built(); }
void clip_on_device(OptimizerCore&, ReplicaPart&, double) { throw_not_built(); }
void sum_squares_on_device(const at::Tensor&, double*, std::size_t) { throw_not_built(); }

}  // namespace lockstep::detail
