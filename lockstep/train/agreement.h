#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/strategy/strategy.h"
#include "lockstep/train/decision.h"

namespace lockstep::train::detail {

/// What a worker brings to a moment at which all of them decide.
struct Ballot {
  Decision decision;
  double learning_rate = 0;         ///< the one it trains with; must be the same on all workers
  bool decides_in_batches = false;  ///< it wants a vote after every step
  /// A bit for each callback that is to save, in their order; see `saver_bit`.
  std::uint64_t savers = 0;
  bool terminates = false;  ///< it was told to end: all save at this moment, and end
};

/// All that come behind the 64th share its bit: they save together.
inline std::uint64_t saver_bit(std::size_t callback) { return std::uint64_t{1} << std::min<std::size_t>(callback, 63); }
inline constexpr std::uint64_t kAllSave = ~std::uint64_t{0};

/// What holds for all workers, from the ballots of all in their order. Throws FailedPrecondition if learning rates differ.
Ballot outcome(const std::vector<Ballot>& ballots);

/// The outcome of all workers' ballots. Outside of run; every worker must call it.
Ballot agree(const Strategy& strategy, const Ballot& mine);

}  // namespace lockstep::train::detail
