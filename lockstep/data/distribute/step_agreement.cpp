#include "lockstep/data/distribute/step_agreement.h"

#include "lockstep/data/errors.h"

namespace lockstep::data {

StepTotals totals_of(const OfferedStep& read, const ClusterShape& cluster,
                     const std::function<bool()>& knows_empty_batches) {
  if (read.error) return {.failed = 1, .failed_ids = cluster.worker};
  StepTotals mine{.empty = cluster.replicas_per_worker};
  for (std::size_t k = 0; read.step && k < read.step->elements.size(); ++k) {
    const auto& element = read.step->elements[k];
    if (!element) continue;
    ++mine.values;
    const std::int64_t rows = common_rows(*element);
    if (rows != 0) --mine.empty;
    rows < 0 ? ++mine.unclear : mine.rows += rows;
  }
  mine.helpless = mine.values == 0 && cluster.workers > 1 && !knows_empty_batches() ? 1 : 0;
  return mine;
}

StepVerdict judge_step(const DistributedInput& input, const std::optional<InputStep>& step,
                       const std::optional<StepTotals>& all, bool partial_steps) {
  // All replicas have a piece of a global batch.
  if (step && step->total && !all) return {.exists = *step->total > 0, .rows = step->rows};
  StepVerdict verdict;
  std::int64_t values = step ? step->local_values() : 0;
  if (all) {
    values = all->values;
    verdict.is_stuck = all->helpless > 0 && values > 0 && !input.whole_steps;
    if (all->unclear == 0) verdict.rows = {.all = all->rows, .has_empty = all->empty > 0};
  }
  // Endless data is not counted over workers: only this worker's replicas are known.
  const int replicas = all ? input.cluster.replicas() : input.cluster.replicas_per_worker;
  verdict.exists = has_step(partial_steps && !input.whole_steps, static_cast<int>(values), replicas, values);
  return verdict;
}

std::exception_ptr common_failure(const OfferedStep& read, const StepTotals& all, const ClusterShape& cluster,
                                  std::int64_t step) {
  if (read.error) return read.error;
  const std::string who =
      all.failed == 1 ? str("worker ", all.failed_ids) : str(counted(static_cast<int>(all.failed), "worker"));
  return std::make_exception_ptr(FailedPrecondition(
      errors::kPeerFailed, {.what = str(who, " could not read the next step of a distributed dataset"),
                            .where = str("step ", step, ", seen by worker ", cluster.worker),
                            .help = "fix the cause that the error on that worker names"}));
}

}  // namespace lockstep::data
