#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/replica_choice.h"

namespace lockstep {

class MirroredStrategy;

struct BestCpusOptions {
  /// Under which `lockstep tune --remember` remembers this program's number. Empty: its path. A program that trains several networks
  /// gives each a name.
  std::string name = {};
  /// How many replicas if no number is remembered.
  int otherwise = 1;
};

/// `ls::cpus(n)` with the n that `lockstep tune --remember -- ./train` has found for this program, CPU and number of cores. Logs a line
/// with the number, because it decides the bits: another machine may have another one. To be sure of the bits, write `ls::cpus(4)`.
///
///     ls::MirroredStrategy strategy({.devices = ls::best_cpus()});
LOCKSTEP_EXPORT std::vector<std::string> best_cpus(const BestCpusOptions& options = {});

struct SuggestOptions {
  std::vector<int> replicas = {};  ///< to try; empty: 1, 2, 4, ... and all cores
  double seconds = 2;              ///< to measure each for, after a warm-up
};

struct ReplicaSuggestion {
  int replicas = 1;
  std::string why = {};
  std::vector<ReplicaMeasurement> measured = {};
};

/// Measures training steps of this process with 1, 2, 4, ... replicas. `make_step` builds a network and an optimizer with the strategy
/// that it is given, and returns one training step. LibTorch's generators are left as they were. Takes as much memory as the largest of
/// these trainings. `lockstep tune` measures a whole program instead, and each number in a process of its own.
///
///     const auto best = ls::suggest_replicas([&](ls::MirroredStrategy& strategy) {
///       auto net = strategy.make<Net>();
///       auto optimizer = strategy.make_optimizer<torch::optim::SGD>(net, 0.01);
///       return [=, &strategy]() mutable { strategy.run(step_of(net, optimizer), strategy.split(batch)); };
///     });
///     std::cout << best;
LOCKSTEP_EXPORT ReplicaSuggestion
suggest_replicas(const std::function<std::function<void()>(MirroredStrategy& strategy)>& make_step,
                 const SuggestOptions& options = {});

/// The table and the reason.
LOCKSTEP_EXPORT std::ostream& operator<<(std::ostream& out, const ReplicaSuggestion& suggestion);

}  // namespace lockstep
