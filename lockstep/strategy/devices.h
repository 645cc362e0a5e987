#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/device_name.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/values/distributed_fwd.h"
#include "lockstep/values/placement.h"

namespace lockstep {

class Variable;
class Strategy;

/// A list of device names in full spelling, "/job:localhost/replica:0/task:0/device:CPU:1".
using Devices = std::vector<std::string>;

/// Where LibTorch keeps the tensors of a device. All CPU devices are one to LibTorch: `cpu:0` and `cpu:1` differ in
/// the thread that works, not in the memory.
LOCKSTEP_EXPORT at::Device torch_device(const DeviceName& name);

/// The same for several devices.
LOCKSTEP_EXPORT std::vector<at::Device> torch_devices(const std::vector<DeviceName>& names);

/// How many GPUs this build of Lockstep can use.
LOCKSTEP_EXPORT int visible_gpus();

/// The name itself, or InvalidArgument if the linked LibTorch has no such device.
LOCKSTEP_EXPORT const DeviceName& require_here(const DeviceName& name);

/// What a strategy was asked for, or every GPU, or one CPU. While `lockstep tune` measures the program: as many CPU replicas as that
/// wants, and Unimplemented for GPUs.
std::vector<std::string> devices_or_default(const std::optional<std::vector<std::string>>& asked);

/// Whether some are CPUs and others GPUs.
LOCKSTEP_EXPORT bool are_mixed(const std::vector<at::Device>& devices);

/// What kinds of devices a strategy has.
enum class DeviceKinds { Cpus, Gpus, Mixed };
/// The kinds of these devices.
DeviceKinds kinds_of(const std::vector<at::Device>& devices);

/// Throws where they are several GPUs of one process, between which sums cannot be made in this way.
LOCKSTEP_EXPORT void require_way_between(const std::vector<DeviceName>& devices, Implementation implementation);

/// Throws where a replica on the GPU `own` brings a tensor on another one to a meeting.
LOCKSTEP_EXPORT void require_own_gpu(const char* operation, at::Device own, at::Device given);

/// For a Mirrored with a component on each of `devices`; `of_replicas`: those of the local replicas. All in full spelling.
LOCKSTEP_EXPORT std::shared_ptr<const Placement> place_on(Devices devices, const Devices& of_replicas);

/// Where a reduction or broadcast delivers its result: a device by name, or wherever a value lives.
///
///     strategy.extended().reduce_to(ReduceOp::Sum, value, "cpu:0");    // one device
///     strategy.extended().reduce_to(ReduceOp::Sum, value, value);      // the devices of all components
///     strategy.extended().reduce_to(ReduceOp::Sum, value, variable);   // the variable is not changed
class LOCKSTEP_EXPORT Destinations {
 public:
  Destinations(std::nullptr_t) = delete;
  Destinations(const char* device) : Destinations(std::string(device)) {}  // NOLINT(google-explicit-constructor)
  Destinations(const std::string& device);                                 // NOLINT(google-explicit-constructor)
  Destinations(const at::Tensor& where_this_is);                           // NOLINT(google-explicit-constructor)
  Destinations(const Variable& where_its_components_are);                  // NOLINT(google-explicit-constructor)
  template <class T>
  Destinations(const PerReplica<T>& value)  // NOLINT(google-explicit-constructor)
      : components_(static_cast<int>(value.size())) {}
  template <class T>
  Destinations(const Mirrored<T>& value) {  // NOLINT(google-explicit-constructor)
    if (value.placement())
      devices_ = value.placement()->devices;
    else
      components_ = static_cast<int>(value.size());
  }

  /// The devices in order, in full spelling; components that were not put on devices by name are on the first replicas'.
  Devices resolve(const Strategy& strategy) const;
  bool is_by_name() const { return components_ == 0; }

 private:
  Devices devices_;
  int components_ = 0;
};

}  // namespace lockstep
