#pragma once

#include <vector>

#include "lockstep/nn/step_observer.h"

namespace lockstep {
class WorkerGroup;
}

namespace lockstep::detail {

struct SentDigests;

/// Compares what replicas and workers hold, every so many steps (set_digest). Replicas on GPUs compute their digests there and
/// send them to the host while training continues; they are compared a call later.
class Drift final : public StepObserver {
 public:
  explicit Drift(const OptimizerCore& core);
  ~Drift() override;

  /// Waits for what the calling replica has sent, so that all can compare it when they have met.
  void gradients_shown(const StepMoment& moment) override;
  void agreed(const StepMoment& moment) override;
  void updated(const StepMoment& moment) override;

  /// Waits for what was sent, compares and forgets it, while no replica runs.
  void settle();
  void forget();

 private:
  void send(const StepMoment& moment);
  void require_no_difference_in_sent() const;

  const bool sends_;               ///< replicas on GPUs of one process
  std::vector<SentDigests> sent_;  ///< per replica
};

}  // namespace lockstep::detail
