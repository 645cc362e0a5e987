#include "lockstep/values/structure.h"

namespace lockstep::detail {

std::string join_parts(const std::vector<std::string>& parts) {
  constexpr std::ptrdiff_t kLongRun = 6;
  std::string joined;
  for (auto begin = parts.begin(); begin != parts.end();) {
    auto end = std::find_if(begin, parts.end(), [&](const std::string& part) { return part != *begin; });
    const std::ptrdiff_t run = end - begin;
    if (run < kLongRun) end = begin + 1;
    joined += (joined.empty() ? "" : ", ") + *begin;
    if (run >= kLongRun) joined += str(" x ", run);
    begin = end;
  }
  return joined;
}

}  // namespace lockstep::detail
