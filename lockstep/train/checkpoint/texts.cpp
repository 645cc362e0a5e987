#include "lockstep/train/checkpoint/texts.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/train/checkpoint/errors.h"

namespace lockstep::train::detail {
namespace {

using Json = nlohmann::json;

/// The text in quotes; throws Json::exception if it is not UTF-8.
std::string quoted(const std::string& text) { return Json(text).dump(); }

}  // namespace

std::string texts_to_json(const std::map<std::string, std::string>& texts) {
  std::string json = "{";
  for (const auto& [name, text] : texts) {
    try {
      json += str(json.size() > 1 ? ",\n " : "\n ", quoted(name), ": ", quoted(text));
    } catch (const Json::exception&) {
      throw InvalidArgument(errors::kCheckpoint, {.what = str("the text '", name, "' of a snapshot is not UTF-8"),
                                                  .help = "capture bytes as a tensor, or as hexadecimal digits"});
    }
  }
  return json + "\n}\n";
}

std::map<std::string, std::string> texts_from_json(std::string_view json, const std::string& path) {
  try {
    return Json::parse(json).get<std::map<std::string, std::string>>();
  } catch (const Json::exception& error) {
    throw DataLoss(errors::kCheckpoint, {.what = str(path, " is damaged: it is not a JSON object of texts"),
                                         .seen = error.what(),
                                         .help = "use an older checkpoint, or a copy of this one"});
  }
}

}  // namespace lockstep::train::detail
