#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

inline constexpr const char* kWriteTFConfig =
    "write TF_CONFIG as {\"cluster\": {\"worker\": [\"host0:2222\", \"host1:2222\"]}, \"task\": {\"type\": \"worker\", "
    "\"index\": 0}}, or unset it to train on this machine alone";

/// Text from outside as a message can hold it: short, and without bytes that a terminal would act on.
inline std::string shown(std::string_view text, std::size_t most = 160) {
  std::string result(text.substr(0, most));
  std::ranges::replace_if(
      result, [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }, '?');
  return text.size() > most ? result + "..." : result;
}

[[noreturn]] inline void refuse_cluster(std::string what, std::string where, std::string help, std::string seen = "") {
  throw InvalidArgument(
      errors::kClusterDescription,
      {.what = std::move(what), .where = std::move(where), .seen = std::move(seen), .help = std::move(help)});
}

}  // namespace lockstep
