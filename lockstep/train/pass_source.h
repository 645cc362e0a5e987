#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/export.h"
#include "lockstep/strategy/snapshot.h"

namespace lockstep::train::detail {

/// Passes over data, one step after the other, whatever the type of its batches; and the place in them, to continue from.
class LOCKSTEP_EXPORT PassSource : public std::enable_shared_from_this<PassSource> {
 public:
  PassSource();
  virtual ~PassSource() = default;

  /// Different for each of them in this process.
  std::uint64_t number() const { return number_; }

  virtual void start_pass(Strategy& strategy) = 0;
  /// Steps of a pass, if known.
  virtual std::optional<std::int64_t> steps(Strategy& strategy) = 0;

  /// Returns when the next step could be had without waiting, or after `limit`; whether it could. True where that is not known.
  virtual bool wait_for(std::chrono::milliseconds /*limit*/) { return true; }

  /// Why its place cannot be saved exactly, if so: "a torch::data loader".
  virtual std::optional<std::string> place_obstacle(Strategy& strategy) = 0;
  /// The place behind the last step taken. If that cannot be saved: how many steps of the pass were taken.
  void capture(Snapshot& into, const std::string& name);
  /// Goes to a captured place; false if it was before the first pass. A place that could not be saved is reached by reading the
  /// steps before it again.
  bool restore(Strategy& strategy, const Snapshot& from, const std::string& name);

 protected:
  /// The position in the pass that was started last; null if it cannot be captured.
  virtual std::shared_ptr<Stateful> place() = 0;
  virtual bool skip_step() = 0;  ///< false at the end of the pass

  std::optional<std::int64_t> taken_ = {};  ///< steps of the last pass; none before the first

 private:
  std::uint64_t number_;
};

}  // namespace lockstep::train::detail
