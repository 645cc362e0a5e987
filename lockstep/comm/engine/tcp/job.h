#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/engine/collective.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/frame.h"
#include "lockstep/comm/engine/sum_plan.h"

namespace lockstep::engine {

/// A collective that was submitted, with copies of all but the arrays.
struct Job {
  CollectiveKind kind = CollectiveKind::Barrier;
  Dtype dtype = Dtype::Float32;
  Implementation implementation = Implementation::Auto;
  int root = 0;
  std::size_t elements = 0;
  std::int64_t divisor = 1;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<std::uint64_t> counts;
  std::string name;
  Deadline deadline = Deadline::never();
  Fingerprint fingerprint{};

  // Guarded by the channel's mutex.
  bool done = false;
  std::optional<lockstep_status> error;

  bool reduces() const { return kind == CollectiveKind::AllReduce || kind == CollectiveKind::ReduceScatter; }
  /// Which worker owns which elements.
  std::vector<Shard> shards(int workers) const {
    return counts.empty() ? even_shards(elements, workers) : shards_of({counts.begin(), counts.end()});
  }
};

/// Copies a description after checking it; throws InvalidArgument. `sequence` goes into the fingerprint.
Job make_job(const lockstep_collective& collective, int rank, int workers, int replicas, std::uint64_t sequence);

}  // namespace lockstep::engine
