#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/strategy/detail/one_thread.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {

class RunWatcher;    // strategy/detail/run_notes.h
class StepRecorder;  // strategy/detail/step_recorder.h

/// What a strategy remembers of its runs.
struct Runs {
  /// Whether another thread is inside run: what it works on cannot be looked at from here.
  bool are_elsewhere() const {
    const void* const thread = runner.load();
    return thread != nullptr && thread != this_thread();
  }
  /// From the next run on, `watcher` looks at what replicas do, as long as it lives.
  void watch(std::weak_ptr<const RunWatcher> watcher) { watchers.push_back(std::move(watcher)); }

  std::optional<RunFailure> last_failure;
  std::uint64_t failed = 0;                  ///< runs that threw: what lasts from one to the next was cut short
  std::atomic<std::uint64_t> begun{0};       ///< runs so far, without those in merge functions
  std::int64_t calls = 0;                    ///< and with them
  std::atomic<const void*> runner{nullptr};  ///< stands for the thread that is inside run; null: none is
  std::vector<std::weak_ptr<const RunWatcher>> watchers;
  StepRecorder* recorder = nullptr;  ///< of the captured step whose run is under way; null: none is
};

}  // namespace lockstep::detail
