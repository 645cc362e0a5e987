#include "lockstep/base/text.h"

#include <algorithm>

#include "lockstep/base/export.h"

namespace lockstep {

LOCKSTEP_EXPORT std::string counted(long long count, const std::string& noun) {
  return str(count, ' ', noun, count == 1 ? "" : "s");
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

}  // namespace lockstep
