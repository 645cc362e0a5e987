#include "lockstep/base/error.h"
#include "lockstep/strategy/gpu.h"

namespace lockstep::gpu {

std::string nccl_version() { return {}; }

std::shared_ptr<GpuWorkers> connect_workers(WorkerGroup&, const std::vector<at::Device>&,
                                            const CommunicationOptions& options, double, double) {
  if (options.implementation == Implementation::Nccl) {
    throw Unimplemented(errors::kNotAvailable,
                        {.what = "implementation NCCL is not part of this build",
                         .help = "build Lockstep with -DLOCKSTEP_CUDA=ON -DLOCKSTEP_NCCL=ON, or use "
                                 "Implementation::Auto, which goes through host memory"});
  }
  return nullptr;
}

}  // namespace lockstep::gpu
