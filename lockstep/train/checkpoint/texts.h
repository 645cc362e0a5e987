#pragma once

#include <map>
#include <string>
#include <string_view>

// The texts of a snapshot as a JSON object, which other programs read too.
namespace lockstep::train::detail {

inline constexpr const char* kTextsName = "texts.json";

/// InvalidArgument, with its name, for a text that is not UTF-8.
std::string texts_to_json(const std::map<std::string, std::string>& texts);
/// DataLoss if it is not an object of texts; `path` is for messages.
std::map<std::string, std::string> texts_from_json(std::string_view json, const std::string& path);

}  // namespace lockstep::train::detail
