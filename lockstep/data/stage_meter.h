#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

class Stage;

/// What is measured of one stage. Written by the thread that runs the stage, read by anybody.
struct LOCKSTEP_EXPORT StageCounters {
  std::string description;  ///< "map(2 parallel calls)"
  std::string kind;
  std::string label;  ///< what the user calls the stage (MapOptions::name)
  int depth = 0;
  int parallel_calls = 0;
  StageCounters* above = nullptr;  ///< the stage that reads from this one

  std::atomic<std::int64_t> first_asked_ns{0};  ///< of the steady clock; 0: it was not asked yet
  std::atomic<std::int64_t> elements{0};
  std::atomic<std::int64_t> rows{0};
  std::atomic<std::int64_t> asked_ns{0};      ///< within `next`, inputs on the same thread included
  std::atomic<std::int64_t> computing_ns{0};  ///< of parallel calls: within the function, all threads together
  std::atomic<std::int64_t> buffered{0};      ///< pieces that were ready, summed over requests
  std::atomic<std::int64_t> requests{0};
  std::atomic<std::int64_t> buffer_size{0};

  void buffer(std::size_t ready, std::size_t size) {
    buffered.fetch_add(static_cast<std::int64_t>(ready), std::memory_order_relaxed);
    requests.fetch_add(1, std::memory_order_relaxed);
    buffer_size.store(static_cast<std::int64_t>(size), std::memory_order_relaxed);
  }
};

/// What one stage did, in numbers for people.
struct LOCKSTEP_EXPORT StageReportLine {
  std::string name;  ///< "map #2 (decode)", counted from the source
  std::string kind;  ///< as Stage::kind
  std::string description;
  int depth = 0;
  int parallel_calls = 0;  ///< 0: it computes on the thread that asks
  std::int64_t elements = 0;
  std::int64_t rows = 0;
  double rows_per_s = 0;
  double busy_s = 0;        ///< computing, its inputs not counted; all threads together
  double waiting_s = 0;     ///< its reader waited for it
  double buffer_fill = -1;  ///< 0 to 1, how full its buffer was on average; -1: it has none
};

struct LOCKSTEP_EXPORT StageReport {
  double seconds = 0;
  std::vector<StageReportLine> stages;  ///< the last stage first
  std::string hint;                     ///< "bound by map #2: try 4 parallel calls"
};

/// What to do about a pipeline that was measured, on a machine with so many cores. Names a stage only if the consumer
/// waits and that stage is what it mostly waits for, and never asks for more parallel calls than there are cores.
LOCKSTEP_EXPORT std::string hint_for(const StageReport& report, int cores);

/// A table with the hint below.
LOCKSTEP_EXPORT std::string to_string(const StageReport& report);

/// Measures the stages of iterations that are given it. Give each pipeline its own. Distributed iterators take one,
/// too, and have a line of their own above those of the stages.
///
///     auto meter = std::make_shared<StageMeter>();
///     for (auto it = dataset.iterate({.meter = meter}); auto batch = it.next();) train(*batch);
///     std::cout << to_string(meter->report());
class LOCKSTEP_EXPORT StageMeter : public std::enable_shared_from_this<StageMeter> {
 public:
  /// The counters of a stage; the same for all passes over it.
  std::shared_ptr<StageCounters> counters_of(const Stage& stage, StageCounters* above);
  /// The same for something that is no stage and reads from one, such as a distributed iterator; `key` tells it from
  /// others.
  std::shared_ptr<StageCounters> counters_of(const std::shared_ptr<const void>& key, std::string kind,
                                             std::string description);
  /// While the result lives, `copy` counts for `original`.
  [[nodiscard]] std::shared_ptr<void> measure_as(const Stage& copy, const Stage& original);
  /// What happened since somebody asked for the first element.
  StageReport report() const;

 private:
  /// What is measured under an address. It is not kept alive: another one may be at the same address later.
  struct Measured {
    std::weak_ptr<const void> owner;
    std::shared_ptr<StageCounters> counters;
  };
  /// The counters of `owner`, with the lock held; fresh ones are empty and must be filled in.
  std::shared_ptr<StageCounters> find_or_add(const std::shared_ptr<const void>& owner, bool& fresh);

  mutable std::mutex mutex_;
  std::map<const void*, Measured> by_stage_;
  std::map<const Stage*, const Stage*> originals_;
  std::vector<std::shared_ptr<StageCounters>> in_order_;
};

}  // namespace lockstep::data
