#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lockstep/base/text.h"

namespace lockstep::data {

/// "2, 3, 4": joins `text_of` of each part with a separator.
template <class Parts, class TextOf = std::identity>
std::string listed(const Parts& parts, std::string_view separator = ", ", TextOf text_of = {}) {
  std::string text;
  bool first = true;
  for (const auto& part : parts) {
    text += str(first ? "" : separator, text_of(part));
    first = false;
  }
  return text;
}

}  // namespace lockstep::data
