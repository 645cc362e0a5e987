#include "lockstep/nn/mirrored_module.h"

#include <torch/nn/module.h>

#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::detail {

void print_model(std::ostream& out, const ModuleCore& model) {
  out << "MirroredModule of " << counted(static_cast<long long>(model.size()), "replica") << ": " << *model.replica(0);
}

void require_device_of(const ModuleCore& model, const at::Device& device) {
  const at::Device here = model.strategy().replica_context(0).device();
  if (device.type() == here.type()) return;
  throw InvalidArgument(
      errors::kDevice,
      {.what = lockstep::str("a model cannot be moved to ", device, ": its replicas are on ", here),
       .where = "to",
       .help = "choose devices when you make the strategy: MirroredStrategy({.devices = ls::cpus(2)}), or "
               "{.devices = {{\"gpu:0\"}}} in a build with LOCKSTEP_CUDA"});
}

}  // namespace lockstep::detail
