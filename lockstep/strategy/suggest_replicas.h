#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/replica_choice.h"

namespace lockstep {

class MirroredStrategy;

/// Options of `best_cpus`.
struct BestCpusOptions {
  /// The name under which `lockstep tune --remember` stored the number. Empty: the path of the program. A program that trains
  /// several networks gives each a name.
  std::string name = {};
  int otherwise = 1;  ///< number of replicas if none is remembered
};

/// `ls::cpus(n)` with the n that `lockstep tune --remember -- ./train` found for this program, CPU and number of cores. Logs the
/// number, because it decides the bits and may differ on another machine. For bits that depend on no file, write `ls::cpus(4)`.
///
///     ls::MirroredStrategy strategy({.devices = ls::best_cpus()});
LOCKSTEP_EXPORT std::vector<std::string> best_cpus(const BestCpusOptions& options = {});

/// Options of `suggest_replicas`.
struct SuggestOptions {
  std::vector<int> replicas = {};  ///< numbers of replicas to measure; empty: 1, 2, 4, ... and one per core
  double seconds = 2;              ///< how long to measure each number, after its warm-up
};

/// What `suggest_replicas` found.
struct ReplicaSuggestion {
  int replicas = 1;                               ///< the number to use
  std::string why = {};                           ///< a sentence or two, for people
  std::vector<ReplicaMeasurement> measured = {};  ///< all measurements
};

/// Measures training steps with 1, 2, 4, ... replicas in this process. `make_step` builds a network and an optimizer with the given
/// strategy, and returns one training step. LibTorch's generators are left unchanged. Needs as much memory as the largest of these
/// trainings. `lockstep tune` measures a whole program instead, each number in a process of its own.
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
