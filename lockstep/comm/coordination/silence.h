#pragma once

#include <chrono>

#include "lockstep/comm/coordination/coordinator.h"
#include "lockstep/comm/way_probe.h"

// How to interpret silence between a member and the chief.
namespace lockstep::coordination {

/// Heartbeats this late raise doubt: the other machine is then probed.
inline Answers::Clock::duration doubt_after(const JoinOptions& options) { return options.heartbeat_interval * 3 / 2; }

/// Heartbeats with gaps below this show that the network is up.
inline Answers::Clock::duration steady_within(const JoinOptions& options) {
  return std::min<Answers::Clock::duration>(2 * options.heartbeat_interval + options.dead_after / 10,
                                            options.dead_after);
}

/// Silence of this many times `dead_after` counts as gone even if it looks like a pause.
inline constexpr int kMostPatience = 12;

/// Whether a process whose last heartbeat came at `heard` is frozen or cut off. If its machine answers again after a
/// gap, the network only paused, and TCP gets the time it may need to retransmit.
bool is_gone(const JoinOptions& options, Answers::Time heard, const Answers& answers, Answers::Time now);

}  // namespace lockstep::coordination
