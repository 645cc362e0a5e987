#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/reduce_op.h"

// What a GPU does in few launches for all segments of a replica. Built with LOCKSTEP_CUDA it is nn/cuda/; without,
// device_step_absent.cpp stands in, which takes nothing.
namespace lockstep::detail {

struct DeviceNumbers;  // nn/cuda/device_numbers.h
struct OptimizerCore;
struct OwnedSegment;
struct ReplicaPart;

/// Whether the fused update on the device can take the place of the inner optimizers, as their options are now: SGD, Adam
/// and AdamW without amsgrad, on float32 weights.
bool has_device_update(const OptimizerCore& core);

// The device alone knows how many steps were made, where a step whose sums are not finite is skipped without asking the host.
/// Waits for the device: the inner optimizer and `mine` know it from now on, as far as there is something to know. Throws
/// what `receive_check` throws.
void settle_counts(const OptimizerCore& core, ReplicaPart& mine);
/// The same for `mine.steps` and `mine.skipped` alone.
void settle_checks(const OptimizerCore& core, ReplicaPart& mine);
/// Of each owned segment, without waiting; undefined where the inner optimizer counts.
at::Tensor counts_on_device(const ReplicaPart& mine);
/// `settle` of all replicas, while none runs; throws what the first of them has thrown.
void settle_all(const OptimizerCore& core, void (*settle)(const OptimizerCore&, ReplicaPart&));

/// NotFinite::Raise: `send_check` starts to copy what the last check came to, and `receive_check`, a step later, throws if
/// it was bad. By then no later step has changed the weights either.
void send_check(const OptimizerCore& core, ReplicaPart& mine);
void receive_check(const OptimizerCore& core, ReplicaPart& mine);

/// Before a step that was recorded is repeated: tells the device of options that have changed.
void send_options_to_device(const OptimizerCore& core, ReplicaPart& mine);
/// After it. `is_scaled`: its loss was.
void note_replay_on_device(const OptimizerCore& core, ReplicaPart& mine, bool is_scaled);

/// A sum that is to be made.
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
