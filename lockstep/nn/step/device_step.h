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

/// Gives sums that have been checked or clipped to the fused update too, as `parts` of one. Only where `has_device_update`.
void leave_sums_to_device(ReplicaPart& mine);

/// Adds up `parts` of every owned segment that has them and updates its weights, as the inner optimizer would, and leaves
/// the same state in it, but for the number of steps, which the device counts. Only where `has_device_update`.
void update_on_device(OptimizerCore& core, ReplicaPart& mine);

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

/// The check for NaN and infinity without waiting for the device. `check_on_device` looks at the sums of what a replica
/// owns; after a meeting of all replicas the update skips the step if one has found some.
bool can_check_on_device(const OptimizerCore& core, const ReplicaPart& mine);
void check_on_device(OptimizerCore& core, ReplicaPart& mine);
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

/// After the update: writes the weights of owned segments that had a gradient to the other GPUs' copies, in one launch where
/// these are in reach.
void write_to_other_gpus(const OptimizerCore& core, const ReplicaPart& mine);

/// block_norm.h's sums for values on a device. Waits for it.
void sum_squares_on_device(const at::Tensor& values, double* sums, std::size_t blocks);

/// Clipping by norm without waiting for the device, in two halves: between them all replicas must meet. Each writes the sums
/// of squares of what it owns to `core.device_block_sums`; then each computes the factor and applies it to what it owns.
/// Only for float32 gradients that are dense (`can_clip_on_device`).
bool can_clip_on_device(const OptimizerCore& core, const ReplicaPart& mine);
void write_squares_on_device(OptimizerCore& core, ReplicaPart& mine);
void clip_on_device(OptimizerCore& core, ReplicaPart& mine, double max_norm);

}  // namespace lockstep::detail
