#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

#include "lockstep/nn/cuda/step_numbers.h"

namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// The classes that the fused update supports.
enum class FusedClass { None, Sgd, Adam, AdamW };
FusedClass fused_class_of(const OptimizerCore& core);

inline cudaStream_t current_stream(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

/// The numbers that one replica's fused update reads and counts on the GPU, and the host's view of them.
struct DeviceNumbers {
  /// Starts from the steps counted by the inner optimizer.
  explicit DeviceNumbers(const OptimizerCore& core, ReplicaPart& mine);

  /// Whether the GPU has the current options.
  bool is_current(const OptimizerCore& core) const;
  /// Sends the options that changed.
  void send_options(const OptimizerCore& core);

  std::int64_t* count_of(std::size_t segment) { return counts.mutable_data_ptr<std::int64_t>() + segment; }
  template <class Step>
  Step* steps_for() {
    return reinterpret_cast<Step*>(steps.mutable_data_ptr<std::uint8_t>());
  }
  gpu::CheckResult* result() { return reinterpret_cast<gpu::CheckResult*>(results.mutable_data_ptr<std::int64_t>()); }

  at::Tensor groups;   ///< GroupNumbers, as bytes
  at::Tensor counts;   ///< per owned segment
  at::Tensor steps;    ///< AdamStep or SgdStep, as bytes
  at::Tensor results;  ///< a CheckResult
  std::vector<gpu::GroupNumbers> sent;
  bool has_counted = false;  ///< since the host last fetched them
  bool has_checked = false;  ///< the same: steps may have been skipped

  // Raise: the last check's result on its way to the host.
  at::Tensor on_host;  ///< pinned
  at::cuda::CUDAEvent arrival;
  bool is_under_way = false;
};

}  // namespace lockstep::detail
