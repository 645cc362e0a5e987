#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// Adding to the sums of metrics and means. An operator of LibTorch takes a few microseconds however little it does, which a small
// training step would notice: few numbers on the CPU are added up here.
namespace lockstep::train::metrics {

/// Whether it is on the CPU, contiguous, and small enough for a loop over it.
bool is_small_on_cpu(const at::Tensor& tensor);

/// `sums[at] += value`.
void add_number(const at::Tensor& sums, std::int64_t at, double value);
/// `sums[at] += values.sum()`, in float64.
void add_sum(const at::Tensor& sums, std::int64_t at, const at::Tensor& values);

}  // namespace lockstep::train::metrics
