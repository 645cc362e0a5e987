#pragma once

#include "lockstep/strategy/kernels/dispatch.h"

// The operators of the table in replica_kernels.h. Each passes calls on that it does not cover.
namespace lockstep::kernels {

// safe_operators.cpp, only on Arm
BoxedKernel convolution;
BoxedKernel mkldnn_rnn_layer;

// fast_operators.cpp
BoxedKernel convolution_backward;
BoxedKernel max_pool2d_with_indices_backward;
BoxedKernel mm;
BoxedKernel addmm;

}  // namespace lockstep::kernels
