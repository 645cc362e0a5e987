#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "coordination.pb.h"
#include "lockstep/comm/coordination/coordinator.h"

namespace lockstep::coordination {

inline constexpr unsigned kProtocol = 9;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMaxHello = 256;
inline constexpr std::size_t kMaxKey = 4 << 10;
inline constexpr std::size_t kMaxValue = 1 << 20;
inline constexpr std::size_t kMaxStore = 64 << 20;
inline constexpr std::size_t kMaxMessage = kMaxValue + (64 << 10);
inline constexpr std::size_t kMaxPlace = 512;
inline constexpr std::size_t kMaxFault = 64 << 10;

/// Both sides give up an introduction that takes longer. Giving up too early would make a busy chief busier.
inline std::chrono::milliseconds time_to_introduce_oneself(const JoinOptions& options) {
  return std::max<std::chrono::milliseconds>(std::chrono::seconds(5), options.dead_after);
}

wire::FromChief fault_of(const Error& error);
wire::FromChief value_of(std::string value);
wire::FromChief warning_of(std::string line);

/// "last seen in call 812 of run; host a, pid 4711"
std::string last_seen(const wire::MemberInfo& info);

/// "worker 0, worker 1 and worker 3"
std::string names_of(const std::vector<WorkerEntry>& members);

/// "3.2 s"
std::string seconds_text(std::chrono::nanoseconds time);

}  // namespace lockstep::coordination
