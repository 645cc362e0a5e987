#pragma once

#include <memory>

#include "lockstep/base/export.h"

namespace lockstep {
class Strategy;
}

namespace lockstep::compat {

/// A strategy that may be gone before what refers to it.
class LOCKSTEP_EXPORT HeldStrategy {
 public:
  explicit HeldStrategy(const Strategy& strategy);
  /// Throws if it is gone.
  Strategy& get() const;
  /// Also of strategies that are gone.
  bool operator==(const HeldStrategy& other) const {
    return !strategy_.owner_before(other.strategy_) && !other.strategy_.owner_before(strategy_);
  }

 private:
  std::weak_ptr<Strategy*> strategy_;
};

}  // namespace lockstep::compat
