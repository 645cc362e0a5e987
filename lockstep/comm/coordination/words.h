#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/comm/coordination/coordinator.h"

namespace lockstep::coordination {

/// "worker 2 (10.0.0.3:2222)"
std::string title(const Member& member);

/// "3.2 s"
std::string seconds_text(std::chrono::nanoseconds time);

/// Where two texts differ, a few lines at most; empty if they do not.
std::string difference(const std::string& name_a, const std::string& a, const std::string& name_b,
                       const std::string& b);

/// The facts that differ, by kind: `cluster` for the fact of that name, `program` for others that must be equal.
struct FactDifference {
  std::string cluster = {};
  std::string program = {};
  std::string tolerated = {};
};
FactDifference difference(const std::string& name_a, const std::vector<Fact>& a, const std::string& name_b,
                          const std::vector<Fact>& b);

}  // namespace lockstep::coordination
