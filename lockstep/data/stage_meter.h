#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

struct StageCounters;

/// One stage's figures, for people.
struct LOCKSTEP_EXPORT StageReportLine {
  std::string name;           ///< "map #2 (decode)", counted from the source
  std::string kind;           ///< as Stage::kind
  std::string description;    ///< the stage with its options
  int depth = 0;              ///< stages between it and the last one
  int parallel_calls = 0;     ///< 0: it computes on the thread that asks
  std::int64_t elements = 0;  ///< elements that came out of it
  std::int64_t rows = 0;      ///< rows of these elements
  double rows_per_s = 0;      ///< rows per second of the measured time
  double busy_s = 0;          ///< computing, its inputs not counted; all threads together
  double waiting_s = 0;       ///< its reader waited for it
  double buffer_fill = -1;    ///< 0 to 1, how full its buffer was on average; -1: it has none
};

/// What all stages of a pipeline did.
struct LOCKSTEP_EXPORT StageReport {
  double seconds = 0;                   ///< length of the measurement
  std::vector<StageReportLine> stages;  ///< the last stage first
  std::string hint;                     ///< "bound by map #2: try 4 parallel calls"
};

/// Advice about a measured pipeline on a machine with so many cores. Names a stage only if the consumer waits and that
/// stage is the main cause, and never suggests more parallel calls than cores.
LOCKSTEP_EXPORT std::string hint_for(const StageReport& report, int cores);

/// A table with the hint below.
LOCKSTEP_EXPORT std::string to_string(const StageReport& report);

/// Measures the stages of iterations that are given it. Use one per pipeline. Distributed iterators take one too, and
/// have a line of their own above those of the stages.
///
///     auto meter = std::make_shared<StageMeter>();
///     for (auto it = dataset.iterate({.meter = meter}); auto batch = it.next();) train(*batch);
///     std::cout << to_string(meter->report());
class LOCKSTEP_EXPORT StageMeter {
 public:
  StageMeter();
  ~StageMeter();
  /// The counters of a stage, or of a reader of one such as a distributed iterator; the same for all passes over it.
  /// `key` identifies it, `line` describes it, `above` reads from it and may be null.
  std::shared_ptr<StageCounters> counters_of(const std::shared_ptr<const void>& key, StageReportLine line,
                                             StageCounters* above = nullptr);
  /// Figures since the first element was requested.
  StageReport report() const;

 private:
  struct Kept;
  std::shared_ptr<Kept> kept_;
};

}  // namespace lockstep::data
