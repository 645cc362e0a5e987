#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "lockstep/strategy/mirrored_strategy.h"

namespace lockstep {

/// Whether the tests' replicas are on the first GPU: LOCKSTEP_TEST_DEVICES=gpu. Tensors made without a device are there
/// too then (tests/support/on_gpu.cpp).
inline bool tests_are_on_gpu() {
  const char* const devices = std::getenv("LOCKSTEP_TEST_DEVICES");
  return devices != nullptr && std::string_view(devices) == "gpu";
}

/// In turn on the GPU and on CPUs.
inline Devices mixed_devices(int replicas, bool gpu_first) {
  Devices devices;
  for (int k = 0; k < replicas; ++k)
    devices.push_back(((k % 2 == 0) == gpu_first ? "gpu:0/" : "cpu:") + std::to_string(k / 2));
  return devices;
}

/// Devices for this many replicas, of the kind under test.
inline Devices test_devices(int replicas) {
  const char* const given = std::getenv("LOCKSTEP_TEST_DEVICES");
  const std::string_view kind = given != nullptr ? given : "";
  if (kind == "gpu_first" || kind == "cpu_first") return mixed_devices(replicas, kind == "gpu_first");
  if (!tests_are_on_gpu()) return cpus(replicas);
  return replicas == 1 ? gpus(1) : logical_gpus(replicas);
}

inline at::Device test_device() { return tests_are_on_gpu() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU); }

/// LOCKSTEP_TEST_NCCL: NCCL rejects workers that share a GPU, unless it takes them for workers of different machines.
inline void use_nccl_on_one_gpu() {
  const char* const cluster = std::getenv("TF_CONFIG");  // different for each worker
  if (cluster != nullptr && std::getenv("LOCKSTEP_TEST_NCCL") != nullptr) setenv("NCCL_HOSTID", cluster, 1);
}

/// A tensor or module made for the host, on the device under test.
inline at::Tensor here(const at::Tensor& tensor) { return tensor.to(test_device()); }
template <class Module>
Module module_here(Module module) {
  module->to(test_device());
  return module;
}

/// The options of a strategy with this many replicas.
inline MirroredOptions on_devices(int replicas) { return {.devices = test_devices(replicas)}; }

/// The same, always on CPUs.
inline MirroredOptions on_cpus(int replicas) { return {.devices = cpus(replicas)}; }

/// The calling replica's id.
inline int my_id() { return get_replica_context().replica_id_in_sync_group(); }

}  // namespace lockstep
