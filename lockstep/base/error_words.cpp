#include "lockstep/base/error_words.h"

#include <algorithm>

#include "lockstep/base/throw_error.h"

namespace lockstep {

std::string in_words(ErrorWords words, std::string_view text) {
  for (const auto& [from, to] : words) {
    if (from.starts_with('=') && from.substr(1) == text) return std::string(to);
  }
  std::string result;
  while (!text.empty()) {
    const auto found =
        std::find_if(words.begin(), words.end(), [&](const auto& pair) { return text.starts_with(pair.first); });
    const bool is_found = found != words.end();
    result += is_found ? found->second : text.substr(0, 1);
    text.remove_prefix(is_found ? found->first.size() : 1);
  }
  return result;
}

void throw_in_words(ErrorWords words, const Error& error) {
  ErrorText text = error.text();
  for (std::string* part : {&text.what, &text.where, &text.seen, &text.help}) *part = in_words(words, *part);
  throw_error(error.code(), error.number(), std::move(text));
}

}  // namespace lockstep
