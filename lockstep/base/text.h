#pragma once

#include <sstream>
#include <string>

namespace lockstep {

/// Joins its arguments as `operator<<` would print them: `str("replica ", 3)`.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// "1 replica", "2 replicas".
inline std::string counted(long long count, const std::string& noun) {
  return str(count, ' ', noun, count == 1 ? "" : "s");
}

}  // namespace lockstep
