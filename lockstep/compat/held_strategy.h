#pragma once

#include <memory>

#include "lockstep/base/export.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/strategy_words.h"

namespace lockstep::compat {

/// A strategy for the length of an expression, in its own terms: `own()->reduce(op, value)`.
class SpeakingStrategy : lockstep::detail::WordsOf {
 public:
  explicit SpeakingStrategy(Strategy& strategy) : WordsOf(strategy), strategy_(strategy) {}
  Strategy* operator->() const { return &strategy_; }

 private:
  Strategy& strategy_;
};

/// A strategy that may be destroyed before the objects that refer to it.
class LOCKSTEP_EXPORT HeldStrategy {
 public:
  explicit HeldStrategy(const Strategy& strategy);
  /// Throws if it was destroyed.
  Strategy& get() const;
  /// Also compares destroyed strategies.
  bool operator==(const HeldStrategy& other) const {
    return !strategy_.owner_before(other.strategy_) && !other.strategy_.owner_before(strategy_);
  }

 private:
  std::weak_ptr<Strategy*> strategy_;
};

}  // namespace lockstep::compat
