#pragma once

#include <cstdio>
#include <string>

namespace lockstep::train {

/// What `std::snprintf` makes of numbers: `formatted("%.4g", 0.1)`.
template <class... Numbers>
std::string formatted(const char* format, Numbers... numbers) {
  char text[128];
  std::snprintf(text, sizeof text, format, numbers...);
  return text;
}

}  // namespace lockstep::train
