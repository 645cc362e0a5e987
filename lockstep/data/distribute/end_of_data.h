#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/static_shape.h"

// What happens when the replicas run out of data, not all in the same step.
namespace lockstep::data {

/// What is known about a dataset before it is distributed.
struct DatasetFacts {
  std::vector<StaticShape> shapes;  ///< of all components
  bool infinite = false;
};

/// Whether a step in which only some replicas have data is completed with empty batches ("partial batch handling").
/// It is unless the dataset never ends, or all shapes are known in full and there is only one worker.
LOCKSTEP_EXPORT bool handles_partial_steps(const DatasetFacts& facts, int workers);

/// What to do with a step in which `local_values` of `local_replicas` replicas got an element.
enum class StepOutcome {
  Complete,  ///< all have data, or those without get dummies
  End        ///< there is no step: the data has ended
};

/// `total_values`: of the replicas of all workers; only looked at where partial steps are handled.
LOCKSTEP_EXPORT StepOutcome decide_step(bool partial_steps, int local_values, int local_replicas,
                                        std::int64_t total_values);

/// How workers agree that the data has ended: once per step each tells how many of its replicas have data.
class LOCKSTEP_EXPORT EndOfDataAgreement {
 public:
  virtual ~EndOfDataAgreement() = default;
  /// The sum of `local_values` over all workers. Called once per step, by every worker, if partial steps are handled.
  virtual std::int64_t total(std::int64_t local_values) = 0;
};

/// One worker agrees with itself.
class LOCKSTEP_EXPORT LocalAgreement final : public EndOfDataAgreement {
 public:
  std::int64_t total(std::int64_t local_values) override { return local_values; }
};

}  // namespace lockstep::data
