#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep {

/// The measurement of one number of replicas.
struct ReplicaMeasurement {
  int replicas = 1;                 ///< number of replicas
  int threads = 1;                  ///< threads of each inside an operation
  std::vector<double> rounds = {};  ///< seconds per step, the median of each round; empty: not measured
  std::int64_t rows = 0;            ///< rows of all replicas in a step; 0: unknown
  std::string not_measured = {};    ///< the reason if it was not measured, in one line
};

/// The numbers of replicas to measure on so many cores: 1, 2, 4, ... and one per core.
LOCKSTEP_EXPORT std::vector<int> plan_replicas(int cores);

/// The number of replicas to use.
struct ReplicaChoice {
  int replicas = 0;  ///< 0: nothing was measured
  std::string why;   ///< a sentence or two, for people
};

/// The fastest by rows per second, or by steps per second if rows are unknown. Of those that are as fast within noise, 2 to 5 %, the
/// one with the fewest replicas: it needs less memory, and its matrices are larger.
LOCKSTEP_EXPORT ReplicaChoice choose_replicas(const std::vector<ReplicaMeasurement>& measured);

/// One line for each, with a heading.
LOCKSTEP_EXPORT std::string table_of(const std::vector<ReplicaMeasurement>& measured);

}  // namespace lockstep
