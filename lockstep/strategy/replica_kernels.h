#pragma once

#include <optional>

namespace lockstep {

/// LibTorch's bfloat16 convolutions on Arm corrupt memory when two threads use them at once (seen with 2.9.1, from Python
/// too). After this call replicas do them in float32 and round the result, gradients included.
void use_safe_convolutions();

/// Whether this thread's replica uses Lockstep's own kernels (nn/fast_kernels.h); see MirroredOptions::fast_kernels.
bool fast_kernels_here();

/// Says so for this thread while it lives.
class FastKernelsScope {
 public:
  explicit FastKernelsScope(bool on);
  ~FastKernelsScope();
  FastKernelsScope(const FastKernelsScope&) = delete;
  FastKernelsScope& operator=(const FastKernelsScope&) = delete;

 private:
  bool outer_;
};

/// On if asked for; unasked, with several replicas on Arm CPUs. Not with one replica, whose results are those of a
/// plain LibTorch program to the last bit.
bool plan_fast_kernels(std::optional<bool> asked, int num_replicas_in_sync, bool on_cpu);

}  // namespace lockstep
