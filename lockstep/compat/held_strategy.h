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
  HeldStrategy() = default;
  explicit HeldStrategy(const Strategy& strategy);
  /// Throws if it is gone.
  Strategy& get() const;

 private:
  std::weak_ptr<Strategy*> strategy_;
};

}  // namespace lockstep::compat
