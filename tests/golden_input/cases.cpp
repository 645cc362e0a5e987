#include "tests/golden_input/cases.h"

#include <cmath>
#include <map>

#include "lockstep/base/text.h"

namespace lockstep::golden_input {
namespace {

/// The kind of error that corresponds to TensorFlow's.
std::string kind_of(const std::string& error) {
  static const std::map<std::string, std::string> kKinds = {
      {"ValueError", "INVALID_ARGUMENT"},
      {"TypeError", "INVALID_ARGUMENT"},
      {"IndexError", "INVALID_ARGUMENT"},
      {"AssertionError", "INVALID_ARGUMENT"},
      {"KeyError", "INVALID_ARGUMENT"},
      {"AttributeError", "INVALID_ARGUMENT"},
      {"InvalidArgument", "INVALID_ARGUMENT"},
      {"InvalidArgumentError", "INVALID_ARGUMENT"},
      {"FailedPrecondition", "FAILED_PRECONDITION"},
      {"RuntimeError", "FAILED_PRECONDITION"},
      {"FailedPreconditionError", "FAILED_PRECONDITION"},
      {"NotFound", "NOT_FOUND"},
      {"NotFoundError", "NOT_FOUND"},
      {"NotImplementedError", "UNIMPLEMENTED"},
      {"Unimplemented", "UNIMPLEMENTED"},
      {"OutOfRange", "OUT_OF_RANGE"},
      {"OutOfRangeError", "OUT_OF_RANGE"},
      {"StopIteration", "OUT_OF_RANGE"},
      {"DataLoss", "DATA_LOSS"},
  };
  const auto found = kKinds.find(error);
  if (found == kKinds.end()) golden::unknown_value("kind of error", error);
  return found->second;
}

/// Leaves of a value in visiting order: parts of a tuple, parts of a dict by key.
void flatten(const json& value, std::vector<json>& leaves) {
  if (value.is_object() && value.contains("tuple")) {
    for (const json& part : value["tuple"]) flatten(part, leaves);
  } else if (value.is_object() && value.contains("dict")) {
    for (const auto& [key, part] : value["dict"].items()) flatten(part, leaves);
  } else {
    leaves.push_back(value);
  }
}

bool is_structure(const json& value) {
  return value.is_object() && (value.contains("tuple") || value.contains("dict"));
}

std::string brief(const json& value) {
  const std::string text = value.dump();
  return text.size() < 300 ? text : text.substr(0, 300) + "...";
}

}  // namespace

std::string difference(const json& expected, const json& got, const std::string& path) {
  const auto differs = [&](const std::string& what) {
    return str(path.empty() ? "the result" : path, ": ", what, ": expected ", brief(expected), ", got ", brief(got));
  };
  if (is_structure(expected) || is_structure(got)) {
    std::vector<json> wanted, found;
    flatten(expected, wanted);
    flatten(got, found);
    if (wanted.size() != found.size()) return differs("the number of components differs");
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (auto text = difference(wanted[i], found[i], str(path, " component ", i)); !text.empty()) return text;
    }
    return "";
  }
  if (expected.is_object()) {
    if (!got.is_object()) return differs("the kind of value differs");
    for (const auto& [key, value] : expected.items()) {
      if (key == "fragment") continue;
      if (!got.contains(key)) return differs("no \"" + key + "\"");
      if (key == "error") {
        if (got[key] != kind_of(value)) return differs("the error differs");
        continue;
      }
      if (auto text = difference(value, got[key], path + "/" + key); !text.empty()) return text;
    }
    if (got.contains("error") && !expected.contains("error")) return differs("an error");
    return "";
  }
  if (expected.is_array()) {
    if (!got.is_array()) return differs("not a list");
    if (expected.size() != got.size()) return differs("the length differs");
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (auto text = difference(expected[i], got[i], str(path, "[", i, "]")); !text.empty()) return text;
    }
    return "";
  }
  if (expected.is_number_float() || got.is_number_float()) {
    if (!expected.is_number() || !got.is_number()) return differs("not a number");
    const double a = expected.get<double>(), b = got.get<double>();
    const bool equal =
        a == b || std::abs(a - b) <= 1e-5 * std::max(std::abs(a), std::abs(b)) || (std::isnan(a) && std::isnan(b));
    return equal ? "" : differs("the number differs");
  }
  return expected == got ? "" : differs("the value differs");
}

}  // namespace lockstep::golden_input
