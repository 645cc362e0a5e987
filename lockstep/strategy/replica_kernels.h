#pragma once

#include <optional>

namespace lockstep {

/// Some of LibTorch's convolutions on Arm corrupt memory when two threads use them at once: those of bfloat16, and of
/// float32 with certain numbers of output channels (seen with 2.9.1, from Python and plain threads too). Layers of an
/// LSTM in bfloat16 give wrong results then. After this call several replicas do what is in bfloat16 in float32 and
/// round the result, gradients included, and other unsafe convolutions another way.
void use_safe_kernels();

/// Arm's scalable vectors: LibTorch has other kernels where they are.
bool has_sve();

/// Which of Lockstep's own kernels (nn/fast_kernels.h) stand before LibTorch's; see MirroredOptions::fast_kernels.
enum class OwnKernels {
  None,
  SameBits,  ///< those whose results are LibTorch's to the last bit
  Faster,    ///< also those that round differently, where they were measured faster
  All,       ///< all that there are
};

/// What this thread's replica uses.
OwnKernels own_kernels_here();

/// Says so for this thread while it lives.
class OwnKernelsScope {
 public:
  explicit OwnKernelsScope(OwnKernels which);
  ~OwnKernelsScope();
  OwnKernelsScope(const OwnKernelsScope&) = delete;
  OwnKernelsScope& operator=(const OwnKernelsScope&) = delete;

 private:
  OwnKernels outer_;
};

/// As asked. Unasked, the faster ones with several CPU replicas; one replica's results stay those of a plain LibTorch
/// program.
OwnKernels plan_own_kernels(std::optional<bool> asked, int num_replicas_in_sync, bool on_cpu);

}  // namespace lockstep
