#pragma once

#include <vector>

#include "lockstep/nn/step_observer.h"

namespace lockstep {
class WorkerGroup;
}

namespace lockstep::detail {

struct SentDigests;

/// Compares the tensors of replicas and workers every so many steps (set_digest). Replicas on GPUs compute their
/// digests there and send them to the host while training continues; they are compared a call later.
class Drift final : public StepObserver {
 public:
  explicit Drift(const OptimizerCore& core);
  ~Drift() override;

  /// Waits for the calling replica's digests, so that all can compare them in the meeting.
  void gradients_shown(const StepMoment& moment) override;
  void agreed(const StepMoment& moment) override;
  void updated(const StepMoment& moment) override;

  /// Waits for pending digests, compares and discards them, while no replica runs.
  void settle();
  void forget();

 private:
  void send(const StepMoment& moment);
  void require_no_difference_in_sent() const;

  const bool sends_;               ///< replicas on GPUs of one process
  std::vector<SentDigests> sent_;  ///< per replica
};

}  // namespace lockstep::detail
