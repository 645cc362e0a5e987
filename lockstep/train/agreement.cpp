#include "lockstep/train/agreement.h"

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

enum Flag : std::int64_t {
  kStop = 1,
  kEndEpoch = 2,
  kSave = 4,
  kRate = 8,
  kReason = 16,
  kInBatches = 32,
  kTerminates = 64
};

/// Flags, the new learning rate, the present one, who saves.
std::vector<std::int64_t> numbers_of(const Ballot& ballot) {
  const Decision& decision = ballot.decision;
  std::int64_t flags = 0;
  const auto set = [&](bool is_set, Flag flag) {
    if (is_set) flags |= flag;
  };
  set(decision.stop, kStop);
  set(decision.end_epoch, kEndEpoch);
  set(decision.save, kSave);
  set(decision.learning_rate.has_value(), kRate);
  set(!decision.reason.empty(), kReason);
  set(ballot.decides_in_batches, kInBatches);
  set(ballot.terminates, kTerminates);
  return {flags, std::bit_cast<std::int64_t>(decision.learning_rate.value_or(0)),
          std::bit_cast<std::int64_t>(ballot.learning_rate), std::bit_cast<std::int64_t>(ballot.savers)};
}

Ballot ballot_of(const std::int64_t* numbers) {
  const auto has = [&](Flag flag) { return (numbers[0] & flag) != 0; };
  Ballot ballot;
  ballot.decision.stop = has(kStop);
  ballot.decision.end_epoch = has(kEndEpoch);
  ballot.decision.save = has(kSave);
  if (has(kRate)) ballot.decision.learning_rate = std::bit_cast<double>(numbers[1]);
  ballot.learning_rate = std::bit_cast<double>(numbers[2]);
  ballot.decides_in_batches = has(kInBatches);
  ballot.terminates = has(kTerminates);
  ballot.savers = std::bit_cast<std::uint64_t>(numbers[3]);
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
  const auto numbers = workers::all_gather(*group, numbers_of(mine), "decision of callbacks", deadline);
  const std::size_t each = numbers.size() / static_cast<std::size_t>(group->workers());
  std::vector<Ballot> ballots;
  bool have_reasons = false;
  for (std::size_t w = 0; w * each < numbers.size(); ++w) {
    ballots.push_back(ballot_of(&numbers[w * each]));
    have_reasons |= (numbers[w * each] & kReason) != 0;
  }
  if (have_reasons) {
    const auto reasons = workers::all_gather_texts(*group, {mine.decision.reason}, "reasons of callbacks", deadline);
    for (std::size_t w = 0; w < ballots.size(); ++w) ballots[w].decision.reason = reasons[w].at(0);
  }
  return outcome(ballots);
}

}  // namespace lockstep::train::detail
