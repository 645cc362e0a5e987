#pragma once

namespace lockstep::nn {

/// Lockstep's own kernels stand before LibTorch's on replica threads (MirroredOptions::fast_kernels) in every program
/// that uses `make` (docs/performance.md). For Arm CPUs, where LibTorch 2.9 leaves much to gain:
///
/// - Gradients of 2-D convolutions. That of the input is a forward convolution with flipped weights, for which LibTorch
/// has
///   good kernels; that of the weights has a kernel of its own (convolution_gradient.h).
/// - Linear layers, on CPUs without SVE and with one thread per replica (matrix_product.h).
///
/// For x86_64 with AVX-512:
///
/// - Linear layers, with eight threads per replica or more (shared_product.h).
///
/// And for all CPUs:
///
/// - The gradient of 2-D max-pooling where images are channels-last (max_pool_gradient.h). LibTorch converts it to the
/// other
///   layout and back, and leaves the layers below to deal with both.
///
/// What they do not cover (other types, dilation, groups, transposed convolutions, small matrices, gradients of
/// gradients) goes to LibTorch as before.
///
/// This does nothing but bring them into the program: a static library's file is left out unless something in it is
/// used.
void link_fast_kernels();

}  // namespace lockstep::nn
