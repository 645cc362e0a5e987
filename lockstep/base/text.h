#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>

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

/// For names that people type: only ASCII letters count as the same in both cases.
inline bool equals_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

}  // namespace lockstep
