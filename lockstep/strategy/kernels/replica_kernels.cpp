#include "lockstep/strategy/kernels/replica_kernels.h"

#include "lockstep/strategy/kernels/operators.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace lockstep {
namespace {

thread_local auto own_kernels = OwnKernels::None;

// In this file, which every strategy needs: a static library's file is left out unless something in it is used.
[[maybe_unused]] const bool kernels_are_registered = [] {
#if defined(__aarch64__)
  kernels::put_before_libtorch<&kernels::convolution>("convolution");
  kernels::put_before_libtorch<&kernels::mkldnn_rnn_layer>("mkldnn_rnn_layer");
#endif
  kernels::put_before_libtorch<&kernels::convolution_backward>("convolution_backward");
  kernels::put_before_libtorch<&kernels::max_pool2d_with_indices_backward>("max_pool2d_with_indices_backward");
  kernels::put_before_libtorch<&kernels::mm>("mm");
  kernels::put_before_libtorch<&kernels::addmm>("addmm");
  return true;
}();

}  // namespace

OwnKernels own_kernels_here() { return own_kernels; }

OwnKernelsScope::OwnKernelsScope(OwnKernels which) : outer_(own_kernels) { own_kernels = which; }
OwnKernelsScope::~OwnKernelsScope() { own_kernels = outer_; }

OwnKernels plan_own_kernels(std::optional<bool> asked, int num_replicas_in_sync, bool on_cpu) {
  if (asked) return *asked ? OwnKernels::All : OwnKernels::None;
  return on_cpu && num_replicas_in_sync > 1 ? OwnKernels::Faster : OwnKernels::SameBits;
}

bool has_sve() {
#if defined(__aarch64__)
  static const bool here = (getauxval(AT_HWCAP) & HWCAP_SVE) != 0;
  return here;
#else
  return false;
#endif
}

}  // namespace lockstep
