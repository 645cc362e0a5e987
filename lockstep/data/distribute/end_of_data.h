#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/base/export.h"

// What happens when the replicas run out of data, not all in the same step.
namespace lockstep::data {

/// Whether there is a step if `local_values` of `local_replicas` replicas got an element: all have data, or those
/// without get dummies. `total_values`: of the replicas of all workers; only looked at where partial steps are handled.
inline bool has_step(bool partial_steps, int local_values, int local_replicas, std::int64_t total_values) {
  return partial_steps ? total_values > 0 : local_values == local_replicas;
}

/// What the workers tell each other about a step: numbers that are added up.
struct StepTotals {
  std::int64_t values = 0;      ///< replicas that have data
  std::int64_t rows = 0;        ///< of their data
  std::int64_t unclear = 0;     ///< replicas whose data has no one number of rows
  std::int64_t empty = 0;       ///< replicas without rows
  std::int64_t helpless = 0;    ///< workers without data that do not know what their empty batches should look like
  std::int64_t failed = 0;      ///< workers that could not read the step
  std::int64_t failed_ids = 0;  ///< of these, added up: if there is one, which
};

/// How workers agree that the data has ended: once per step each tells what its replicas have.
class LOCKSTEP_EXPORT EndOfDataAgreement {
 public:
  virtual ~EndOfDataAgreement() = default;
  /// What all workers have told. Called once per step, by every worker, if partial steps are handled.
  virtual StepTotals total(const StepTotals& mine) = 0;
  /// The same without waiting: what is returned waits, if it is called, and at the latest when it goes.
  virtual std::function<StepTotals()> begin(const StepTotals& mine) {
    return [this, mine] { return total(mine); };
  }
};

/// One worker agrees with itself.
class LOCKSTEP_EXPORT LocalAgreement final : public EndOfDataAgreement {
 public:
  StepTotals total(const StepTotals& mine) override { return mine; }
};

}  // namespace lockstep::data
