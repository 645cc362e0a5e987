#pragma once

#include <sstream>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// Joins its arguments as `operator<<` would print them: `str("replica ", 3)`.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// "1 replica", "2 replicas".
LOCKSTEP_EXPORT std::string counted(long long count, const std::string& noun);

/// For names typed by people: ignores the case of ASCII letters only.
bool equals_ignoring_case(std::string_view a, std::string_view b);

}  // namespace lockstep
