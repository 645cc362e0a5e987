#pragma once

#include <vector>

#include "lockstep/strategy/strategy.h"
#include "lockstep/train/decision.h"

namespace lockstep::train::detail {

/// What a worker brings to a moment at which all of them decide.
struct Ballot {
  Decision decision;
  double learning_rate = 0;         ///< the one it trains with; must be the same on all workers
  bool decides_in_batches = false;  ///< it wants a vote after every step
};

/// What holds for all workers, from the ballots of all in their order. Throws FailedPrecondition if learning rates differ.
Ballot outcome(const std::vector<Ballot>& ballots);

/// The outcome of all workers' ballots. Outside of run; every worker must call it.
Ballot agree(const Strategy& strategy, const Ballot& mine);

}  // namespace lockstep::train::detail
