#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

// The calling thread's autocast, for files that need not read LibTorch's header of it, which includes all of ATen.
namespace lockstep::detail {

bool is_autocast_on(c10::DeviceType device);
c10::ScalarType autocast_type(c10::DeviceType device);

/// Autocast on this thread casts weights anew from now on.
void forget_casts();

/// Autocast remembers the weights it has cast. After the run they may change, so it must not remember them then. What
/// it remembers is shared by all threads, and a thread that leaves autocast clears everything, also what others still
/// use: whether a weight is cast once or twice in a pass, and so the rounding of its gradient, would depend on timing.
/// Several replicas therefore cast a weight whenever it is used.
class CastsInRun {
 public:
  explicit CastsInRun(bool several);
  ~CastsInRun();
  CastsInRun(const CastsInRun&) = delete;
  CastsInRun& operator=(const CastsInRun&) = delete;

 private:
  bool outer_;
};

}  // namespace lockstep::detail
