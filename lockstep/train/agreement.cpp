#include "lockstep/train/agreement.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::train::detail {
namespace {

using lockstep::detail::StrategyAccess;

/// A ballot without its reason, as workers exchange it.
struct BallotBytes {
  std::uint64_t savers = 0;
  double learning_rate = 0, new_rate = 0;
  bool stop = false, end_epoch = false, save = false, has_new_rate = false, has_reason = false;
  bool decides_in_batches = false, terminates = false, unused = false;
};
using Numbers = std::array<std::int64_t, sizeof(BallotBytes) / sizeof(std::int64_t)>;

Numbers numbers_of(const Ballot& ballot) {
  const Decision& made = ballot.decision;
  return std::bit_cast<Numbers>(BallotBytes{ballot.savers, ballot.learning_rate, made.learning_rate.value_or(0),
                                            made.stop, made.end_epoch, made.save, made.learning_rate.has_value(),
                                            !made.reason.empty(), ballot.decides_in_batches, ballot.terminates});
}

Ballot ballot_of(const BallotBytes& bytes) {
  Ballot ballot{.decision = {.stop = bytes.stop, .end_epoch = bytes.end_epoch, .save = bytes.save},
                .learning_rate = bytes.learning_rate,
                .decides_in_batches = bytes.decides_in_batches,
                .savers = bytes.savers,
                .terminates = bytes.terminates};
  if (bytes.has_new_rate) ballot.decision.learning_rate = bytes.new_rate;
  return ballot;
}

}  // namespace

Ballot outcome(const std::vector<Ballot>& ballots) {
  std::vector<Decision> decisions;
  Ballot all = ballots.at(0);
  for (std::size_t w = 0; w < ballots.size(); ++w) {
    decisions.push_back(ballots[w].decision);
    all.decides_in_batches |= ballots[w].decides_in_batches;
    all.savers |= ballots[w].savers;
    all.terminates |= ballots[w].terminates;
    if (std::bit_cast<std::int64_t>(ballots[w].learning_rate) == std::bit_cast<std::int64_t>(all.learning_rate))
      continue;
    throw FailedPrecondition(
        errors::kOptimizer,
        {.what = lockstep::str("the learning rate must be the same on all workers, got ", all.learning_rate,
                               " on worker 0 and ", ballots[w].learning_rate, " on worker ", w),
         .help = "return it from a callback, {.learning_rate = rate}, or give fit a .schedule: both reach all workers; "
                 "call optimizer.set_learning_rate on every worker or on none"});
  }
  all.decision = combine(decisions);
  return all;
}

Ballot agree(const Strategy& strategy, const Ballot& mine) {
  WorkerGroup* const group = StrategyAccess::workers(strategy);
  if (group == nullptr || group->workers() == 1) return outcome({mine});
  const Deadline deadline = deadline_of(strategy.communication());
  const Numbers own = numbers_of(mine);
  const auto numbers =
      workers::all_gather(*group, std::vector<std::int64_t>(own.begin(), own.end()), "decision of callbacks", deadline);
  std::vector<Ballot> ballots;
  bool have_reasons = false;
  for (auto next = numbers.begin(); next != numbers.end(); next += std::ssize(own)) {
    Numbers other{};
    std::copy_n(next, other.size(), other.begin());
    const auto bytes = std::bit_cast<BallotBytes>(other);
    ballots.push_back(ballot_of(bytes));
    have_reasons |= bytes.has_reason;
  }
  if (have_reasons) {
    const auto reasons = workers::all_gather_texts(*group, {mine.decision.reason}, "reasons of callbacks", deadline);
    for (std::size_t w = 0; w < ballots.size(); ++w) ballots[w].decision.reason = reasons[w].at(0);
  }
  return outcome(ballots);
}

}  // namespace lockstep::train::detail
