#pragma once

#include <cstdlib>
#include <string>

namespace lockstep {

/// A variable of the environment; empty if it is not set.
inline std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace lockstep
