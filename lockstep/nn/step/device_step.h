#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/reduce_op.h"

// What a GPU does in few launches for all segments of a replica. Built with LOCKSTEP_CUDA it is nn/cuda/; without,
// device_step_absent.cpp stands in, which takes nothing.
namespace lockstep::detail {

struct OptimizerCore;
struct OwnedSegment;
struct ReplicaPart;

/// Whether the fused update on the device can take the place of the inner optimizers, as their options are now: SGD, Adam
/// and AdamW without amsgrad, on float32 weights.
bool has_device_update(const OptimizerCore& core);

/// Gives sums that have been checked or clipped to the fused update too, as `parts` of one. Only where `has_device_update`.
void leave_sums_to_device(ReplicaPart& mine);

/// Adds up `parts` of every owned segment that has them and updates its weights, as the inner optimizer would, and leaves
/// the same state in it. Only where `has_device_update`.
void update_on_device(OptimizerCore& core, ReplicaPart& mine);

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

/// Clipping by norm without waiting for the device, in two halves: between them all replicas must meet. Each writes the sums
/// of squares of what it owns to `core.device_block_sums`; then each computes the factor and applies it to what it owns.
/// Only for float32 gradients that are dense (`can_clip_on_device`).
bool can_clip_on_device(const OptimizerCore& core, const ReplicaPart& mine);
void write_squares_on_device(OptimizerCore& core, ReplicaPart& mine);
void clip_on_device(OptimizerCore& core, ReplicaPart& mine, double max_norm);

}  // namespace lockstep::detail
