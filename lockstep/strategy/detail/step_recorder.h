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
      : parts_(static_cast<std::size_t>(replicas)), is_recording_(is_recording) {}

  /// What is started on the GPU is recorded and not done: counts must not change. False in the runs before, which do all as
  /// usual; what is left here by the last of them is called before the step is recorded.
  bool is_recording() const { return is_recording_; }

  // By each replica for itself.
  /// Called on the caller's thread before the step is repeated; says why it cannot be, or nothing.
  void before_replay(int local_index, std::function<std::string()> check) {
    parts_[static_cast<std::size_t>(local_index)].before.push_back(std::move(check));
  }
  /// Called on the replica's thread, inside a run, after the step was repeated.
  void after_replay(int local_index, std::function<void()> act) {
    parts_[static_cast<std::size_t>(local_index)].after.push_back(std::move(act));
  }

  /// Whether the replica uses `object` for the first time in this step.
  bool is_first_use(int local_index, const void* object) {
    auto& used = parts_[static_cast<std::size_t>(local_index)].used;
    if (std::ranges::find(used, object) != used.end()) return false;
    used.push_back(object);
    return true;
  }

  std::string prepare() const {
    for (const Part& part : parts_) {
      for (const auto& check : part.before) {
        std::string reason = check();
        if (!reason.empty()) return reason;
      }
    }
    return {};
  }
  void finish(int local_index) const {
    for (const auto& act : parts_[static_cast<std::size_t>(local_index)].after) act();
  }

 private:
  struct Part {
    std::vector<std::function<std::string()>> before;
    std::vector<std::function<void()>> after;
    std::vector<const void*> used;
  };
  std::vector<Part> parts_;
  bool is_recording_;
};

}  // namespace lockstep::detail
