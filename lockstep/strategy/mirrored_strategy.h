#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/device_name.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep {

/// Options of a MirroredStrategy.
struct MirroredOptions {
  /// One replica per device: `ls::cpus(2)`, `ls::gpus(2)`, `ls::logical_gpus(2)`. Unset: every GPU, or `cpu:0` with all
  /// cores.
  std::optional<std::vector<std::string>> devices = {};
  /// Moves values between devices. Unset: the ordered sum on the replicas' own threads.
  std::shared_ptr<CrossDeviceOps> cross_device_ops = {};
  /// Number of threads that one replica uses inside an operation. Unset: LibTorch's number. With several replicas that
  /// number, or a container's quota if it is lower, is divided among them, at least 1 each.
  std::optional<int> intra_op_threads = {};
  /// Same as calling `torch::manual_seed` here. Unset: its last call counts. See docs/training.md, Reproducibility.
  std::optional<std::uint64_t> seed = {};
  /// Refuse the two assignments that could let mirrored components drift apart unnoticed.
  bool strict = false;
  /// Keep large blocks of memory instead of returning them to the system after each step, which can cost up to half the
  /// speed. Affects the whole process: malloc, and the memory of LibTorch's CPU tensors. Unset: on with CPU replicas.
  std::optional<bool> keep_memory = {};
  /// Use Lockstep's own kernels on replica threads, for gradients of 2-D convolutions and for linear layers: equal to
  /// LibTorch's up to rounding (see the table in strategy/kernels/replica_kernels.h). Unset: on with several CPU
  /// replicas, if they were measured faster. The gradient of channels-last max-pooling, which has LibTorch's bits, is
  /// on unless this is false.
  std::optional<bool> fast_kernels = {};
  /// Default options of all collectives.
  CommunicationOptions communication = {};
  /// On GPUs: bitwise equal results from run to run, by LibTorch's deterministic algorithms. Affects the whole process.
  /// Operations without such an algorithm throw. Not needed on CPUs.
  bool deterministic = false;
};

/// Synchronous training on the devices of one machine: one replica per device, each on its own thread.
///
///     ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
class LOCKSTEP_EXPORT MirroredStrategy final : public Strategy {
 public:
  explicit MirroredStrategy(MirroredOptions options = {});

 private:
  std::shared_ptr<gpu::Graph> make_graph() override;
};

}  // namespace lockstep
