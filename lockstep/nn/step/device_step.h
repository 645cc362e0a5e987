#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/reduce_op.h"

// Operations that a GPU performs in few launches for all segments of a replica. Implemented in nn/cuda/ with
// LOCKSTEP_CUDA; otherwise by device_step_absent.cpp, which supports nothing.
namespace lockstep::detail {

struct DeviceNumbers;  // nn/cuda/device_numbers.h
struct OptimizerCore;
struct OwnedSegment;
struct ReplicaPart;

/// Whether the fused update on the device can replace the inner optimizers with their current options: SGD, Adam and
/// AdamW without amsgrad, on float32 weights.
bool has_device_update(const OptimizerCore& core);

// Only the device knows how many steps were made if it skips steps with non-finite sums without asking the host. This
// waits for the device and updates the inner optimizer and `mine`, as far as possible. Throws what `receive_check`
// throws.
void settle_counts(const OptimizerCore& core, ReplicaPart& mine);
/// The same, only for `mine.steps` and `mine.skipped`.
void settle_checks(const OptimizerCore& core, ReplicaPart& mine);
/// The count of each owned segment, without waiting; undefined if the inner optimizer counts.
at::Tensor counts_on_device(const ReplicaPart& mine);
/// Calls `settle` for all replicas while none runs; then throws the first error.
void settle_all(const OptimizerCore& core, void (*settle)(const OptimizerCore&, ReplicaPart&));

/// NonFinitePolicy::Raise: `send_check` starts copying the last check's result to the host, and `receive_check`, a step
/// later, throws if it was bad. By then no later step has changed the weights either.
void send_check(const OptimizerCore& core, ReplicaPart& mine);
void receive_check(const OptimizerCore& core, ReplicaPart& mine);

/// Before a recorded step is replayed: sends changed options to the device.
void send_options_to_device(const OptimizerCore& core, ReplicaPart& mine);
/// After it. `is_scaled`: the loss was scaled.
void note_replay_on_device(const OptimizerCore& core, ReplicaPart& mine, bool is_scaled);

/// A sum to be computed.
struct DeviceSum {
  at::Tensor target;                    ///< 1-D, float32; may be one of the gradients
  std::vector<const float*> gradients;  ///< one per replica; null counts as zero
};
/// Whether `sum_on_device` takes sums of such weights.
bool has_device_sum(const at::Tensor& weights, std::size_t replicas);
void sum_on_device(const std::vector<DeviceSum>& sums, std::int64_t divisor);

/// block_norm.h's sums for values on a device. Waits for it.
void sum_squares_on_device(const at::Tensor& values, double* sums, std::size_t blocks);

}  // namespace lockstep::detail
