#pragma once

#include <chrono>
#include <string>

#include "lockstep/comm/coordination/coordinator.h"

namespace lockstep::coordination {

/// "worker 2 (10.0.0.3:2222)"
std::string title(const Member& member);

/// "3.2 s"
std::string seconds_text(std::chrono::nanoseconds time);

/// Where two texts differ, a few lines at most; empty if they do not.
std::string difference(const std::string& name_a, const std::string& a, const std::string& name_b,
                       const std::string& b);

/// The same of two clusters, by their tasks.
std::string cluster_difference(const std::string& name_a, const std::string& a, const std::string& name_b,
                               const std::string& b);

}  // namespace lockstep::coordination
