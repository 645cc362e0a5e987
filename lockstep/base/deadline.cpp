#include "lockstep/base/deadline.h"

namespace lockstep {

bool Deadline::expired() const { return end_ && Clock::now() >= *end_; }

Deadline::Clock::duration Deadline::remaining() const {
  if (!end_) return Clock::duration::max();
  const auto left = *end_ - Clock::now();
  return left > Clock::duration::zero() ? left : Clock::duration::zero();
}

}  // namespace lockstep
