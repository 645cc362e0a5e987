#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/distribute/step_source.h"

namespace lockstep::gpu {
class CopyStream;  // strategy/gpu.h
}

namespace lockstep::data {

/// Copies the elements of steps to the replicas' GPUs ahead of their use. Elements for CPUs stay where they are.
class DeviceCopies {
 public:
  /// `devices`: one per replica; none if elements stay in place. Returns nothing if no element goes to a GPU.
  static std::optional<DeviceCopies> for_gpus_among(const std::vector<at::Device>& devices);

  void start(InputStep& step);

  /// Waits until the elements can be used by the calling thread.
  static void finish(const InputStep& step);

 private:
  std::vector<std::shared_ptr<gpu::CopyStream>> streams_;  ///< per replica, shared on one GPU; null on a CPU
};

}  // namespace lockstep::data
