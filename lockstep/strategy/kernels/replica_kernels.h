#pragma once

#include <optional>

// Kernels that replace LibTorch's on replica threads. They are registered when the program is loaded, so that bits do not
// depend on earlier calls, and they act only inside `run`.
//
// | operator (aten::)                | on when                                     | gain                       | bits    |
// |----------------------------------|---------------------------------------------|----------------------------|---------|
// | convolution                      | Arm, several replicas; bfloat16, or float32 | correct results: LibTorch  | changed |
// |                                  | with unsafe numbers of output channels      | 2.9 corrupts memory here   |         |
// | mkldnn_rnn_layer (LSTM)          | Arm, several replicas; bfloat16             | correct results            | changed |
// | convolution_backward, 2-D        | Faster on Arm, All                          | 5 times on Arm             | changed |
// | mm, addmm (linear layers)        | Faster, All: one thread per replica on Arm  | 1.1 to 1.3 times           | changed |
// |                                  | without SVE; 8 or more with AVX-512         | 1.4 times                  | changed |
// | max_pool2d_with_indices_backward | SameBits, Faster, All: channels-last images | no change of layout        | same    |
// | every operator with a generator  | always (replica_random.h)                   | each replica's own numbers | own     |
// | batch_norm                       | converted layers (nn/sync_batch_norm.h)     | batch norm over replicas   | changed |
//
// What a kernel does not cover (other types, dilation, groups, transposed convolutions, small matrices, gradients of
// gradients) goes to LibTorch as before. docs/performance.md has the measurements. How each works:
//
//   safe_operators.cpp        convolution, mkldnn_rnn_layer
//   fast_operators.cpp        the others, over the arithmetic below, which knows no torch
//   convolution_gradient.h    the weights' gradient; the input's is a convolution with flipped weights, by LibTorch
//   matrix_product.h          a product on one thread
//   shared_product.h          a product on many threads
//   max_pool_gradient.h       the input's gradient
//   dispatch.h                how a kernel is registered and passes a call on
namespace lockstep {

/// Which kernels replace LibTorch's; see MirroredOptions::fast_kernels.
enum class OwnKernels {
  None,      ///< only those that make results correct
  SameBits,  ///< also those whose results are LibTorch's to the last bit
  Faster,    ///< also those that round differently, where they were measured faster
  All,       ///< all of them
};

/// What this thread's replica uses.
OwnKernels own_kernels_here();

/// Sets it for this thread while it lives.
class OwnKernelsScope {
 public:
  explicit OwnKernelsScope(OwnKernels which);
  ~OwnKernelsScope();
  OwnKernelsScope(const OwnKernelsScope&) = delete;
  OwnKernelsScope& operator=(const OwnKernelsScope&) = delete;

 private:
  OwnKernels outer_;
};

/// What `asked` says. By default Faster with several CPU replicas, otherwise SameBits: the results of one replica stay
/// those of a plain LibTorch program.
OwnKernels plan_own_kernels(std::optional<bool> asked, int num_replicas_in_sync, bool on_cpu);

/// Whether the CPU has Arm's scalable vectors, for which LibTorch has different kernels.
bool has_sve();

}  // namespace lockstep
