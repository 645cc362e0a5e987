#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

// Helpers of the readers of cluster descriptions: numbers, and rejecting text from outside.
namespace lockstep {

inline constexpr const char* kWriteTFConfig =
    "write TF_CONFIG as {\"cluster\": {\"worker\": [\"host0:2222\", \"host1:2222\"]}, \"task\": {\"type\": \"worker\", "
    "\"index\": 0}}, or unset it to train only on this machine";

/// A whole number as programs write it into environment variables: "12", " 12 ", "-1", "+3".
inline std::optional<std::int64_t> parse_whole_number(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// Text from outside, made safe for messages: shortened, without control characters.
inline std::string shown(std::string_view text, std::size_t most = 160) {
  std::string result(text.substr(0, most));
  std::ranges::replace_if(
      result, [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }, '?');
  return text.size() > most ? result + "..." : result;
}

[[noreturn]] inline void refuse_cluster(std::string what, std::string help, std::string where = "",
                                        std::string seen = "") {
  throw InvalidArgument(errors::kClusterDescription,
                        {std::move(what), std::move(where), std::move(seen), std::move(help)});
}

}  // namespace lockstep
