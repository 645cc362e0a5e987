#pragma once

#include <optional>
#include <vector>

#include "lockstep/comm/engine/engine.h"
#include "lockstep/comm/engine/frame.h"
#include "lockstep/comm/engine/sum_plan.h"

namespace lockstep::engine {

/// The settings shared by all collectives of an engine.
struct Settings : EngineOptions {
  explicit Settings(const EngineOptions& options);

  SumPlan plan = plan_sum(workers, replicas);
};

/// A submitted collective.
struct Job : Collective {
  /// Checks the description; throws InvalidArgument.
  Job(const Collective& collective, const Settings& settings, std::uint64_t sequence, Deadline limit);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  bool reduces() const { return kind == CollectiveKind::AllReduce || kind == CollectiveKind::ReduceScatter; }
  std::size_t element_bytes() const { return size_of(dtype); }

  Deadline deadline;
  std::int64_t divisor = 1;
  std::vector<Shard> shards;  ///< which worker owns which elements
  bool is_inline = false;     ///< the data is sent with the fingerprint
  Fingerprint fingerprint{};

  using Clock = std::chrono::steady_clock;
  bool is_done() const { return ended != Clock::time_point(); }
  /// `#17 2.120 ms ago, took 0.084 ms: all-reduce SUM of float32 [3, 4] "conv1/kernel"`
  std::string log_line() const;

  // Guarded by the channel's mutex.
  std::optional<Error> error;
  Clock::time_point began, ended;
};

}  // namespace lockstep::engine
