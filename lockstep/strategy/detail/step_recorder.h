#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::detail {

/// Why a step cannot be recorded. The step then runs as it is.
class CannotRecord final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Belongs to a run of a captured step (strategy/captured_step.h). The GPU's part of a recorded step is repeated by the GPU; what
/// parts of Lockstep do on the host they leave here, to be called again each time.
class StepRecorder {
 public:
  StepRecorder(int replicas, bool is_recording)
      : after_(static_cast<std::size_t>(replicas)), is_recording_(is_recording) {}

  /// What is started on the GPU is recorded and not done: counts must not change. False in the runs before, which do all as
  /// usual; what is left here by the last of them is called before the step is recorded.
  bool is_recording() const { return is_recording_; }

  /// By replica 0. Called on the caller's thread before the step is repeated; says why it cannot be, or nothing.
  void before_replay(std::function<std::string()> check) { before_.push_back(std::move(check)); }
  /// By each replica. Called on its thread, inside a run, after the step was repeated.
  void after_replay(int local_index, std::function<void()> act) {
    after_[static_cast<std::size_t>(local_index)].push_back(std::move(act));
  }

  std::string prepare() const {
    for (const auto& check : before_) {
      std::string reason = check();
      if (!reason.empty()) return reason;
    }
    return {};
  }
  void finish(int local_index) const {
    for (const auto& act : after_[static_cast<std::size_t>(local_index)]) act();
  }

 private:
  std::vector<std::function<std::string()>> before_;
  std::vector<std::vector<std::function<void()>>> after_;
  bool is_recording_;
};

}  // namespace lockstep::detail
