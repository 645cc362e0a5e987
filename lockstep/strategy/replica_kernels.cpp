#include "lockstep/strategy/replica_kernels.h"

namespace lockstep {
namespace {

thread_local bool fast_kernels = false;

#if defined(__aarch64__)
constexpr bool kMeasuredFaster = true;
#else
constexpr bool kMeasuredFaster = false;
#endif

}  // namespace

bool fast_kernels_here() { return fast_kernels; }

FastKernelsScope::FastKernelsScope(bool on) : outer_(fast_kernels) { fast_kernels = on; }
FastKernelsScope::~FastKernelsScope() { fast_kernels = outer_; }

bool plan_fast_kernels(std::optional<bool> asked, int num_replicas_in_sync, bool on_cpu) {
  if (asked) return *asked;
  return kMeasuredFaster && on_cpu && num_replicas_in_sync > 1;
}

}  // namespace lockstep
