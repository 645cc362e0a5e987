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
  /// How values travel between devices. Unset: the ordered sum by the replicas' own threads.
  std::shared_ptr<CrossDeviceOps> cross_device_ops = {};
  /// Threads that one replica uses inside an operation. Unset: LibTorch's number; with several replicas that,
  /// or what a container's quota allows if that is less, divided among them, at least 1.
  std::optional<int> intra_op_threads = {};
  /// Like calling `torch::manual_seed` here. Unset: its last call counts. See docs/training.md, Reproducibility.
  std::optional<std::uint64_t> seed = {};
  /// Refuse the two assignments that let mirrored components drift apart without an error.
  bool strict = false;
  /// Keep large blocks of memory instead of giving them back to the system after each step, which costs up to half the
  /// speed. Acts on the whole process: on malloc, and on the memory of LibTorch's CPU tensors. Unset: on with CPU
  /// replicas.
  std::optional<bool> keep_memory = {};
  /// Lockstep's own kernels on replica threads, for gradients of 2-D convolutions and for linear layers: equal to
  /// LibTorch's up to rounding (the table in strategy/kernels/replica_kernels.h). Unset: on with several CPU replicas,
  /// where they were measured faster. The gradient of channels-last max-pooling, whose bits are LibTorch's, is on
  /// unless this is false.
  std::optional<bool> fast_kernels = {};
  /// Defaults for all collectives.
  CommunicationOptions communication = {};
  /// On GPUs: the same bits from run to run, by LibTorch's deterministic algorithms. Acts on the whole process. Operations that have
  /// none throw. CPUs need no such option.
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
