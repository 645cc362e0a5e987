#pragma once

#include <atomic>

namespace lockstep::detail {

/// What an optimizer warns of.
enum class Warning : unsigned {
  BatchSizeInWindow,
  ChangedGradients,
  DifferentSizes,
  EndedWindow,
  EqualRates,
  Leftovers,
  MeanOfRows,
  MeanOfShares,
  ReducedLoss,
  UnreachedParameters,
  UnusedClipping,
  UnusedWindow,
};

/// Warnings that are said once, by whichever replica comes first.
class SaidOnce {
 public:
  bool has(Warning warning) const { return (said_.load(std::memory_order_relaxed) & bit(warning)) != 0; }
  /// Whether the caller is the one to say it.
  bool is_first(Warning warning) const { return (said_.fetch_or(bit(warning)) & bit(warning)) == 0; }

 private:
  static constexpr unsigned bit(Warning warning) { return 1U << static_cast<unsigned>(warning); }

  mutable std::atomic<unsigned> said_{0};
};

}  // namespace lockstep::detail
