#pragma once

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/train/callback.h"
#include "lockstep/train/formatted.h"

// Numbers as text that gives them back exactly, NaN and infinity too.
namespace lockstep::train::detail {

inline std::string exact_text(double value) { return formatted("%a", value); }
inline double exact_number(const nlohmann::json& text) {
  return std::strtod(text.get_ref<const std::string&>().c_str(), nullptr);
}

inline nlohmann::json exact_logs(const Logs& logs) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, value] : logs) object[name] = exact_text(value);
  return object;
}
inline Logs logs_of(const nlohmann::json& object) {
  Logs logs;
  for (const auto& [name, text] : object.items()) logs[name] = exact_number(text);
  return logs;
}

}  // namespace lockstep::train::detail
