#pragma once

#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::golden {

using nlohmann::json;

/// A case has a form unknown to this program: a failure of the test, whatever the case expects.
struct UnknownForm : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws UnknownForm if `object` is not an object or has a key that is not in `known`.
void allow_only(const json& object, std::initializer_list<const char*> known, const std::string& what);

/// `text` is not one of the values of `what`.
[[noreturn]] void unknown_value(const std::string& what, const json& value);

/// One case of the golden data: inputs, and TensorFlow 2.20's results.
struct Case {
  json data;

  std::string id() const { return data.at("id"); }
  std::string area() const { return data.at("area"); }
  int replicas() const { return data.at("replicas"); }
  std::string quirk() const { return data.value("quirk", ""); }
  const json& expect() const { return data.at("expect"); }
  bool expects_error() const { return expect().contains("error"); }

  // In input.json, which has no "replicas".
  int workers() const { return data.value("workers", 1); }
  int replicas_per_worker() const { return data.value("replicas_per_worker", 1); }

  bool has(const char* key) const { return data.contains(key); }
  const json& operator[](const char* key) const { return data.at(key); }

  /// Throws UnknownForm if the case has inputs other than these.
  void allow_inputs(std::initializer_list<const char*> known) const;
};

/// A file in the folder named by LOCKSTEP_GOLDEN_DIR, otherwise in the project's test data.
std::filesystem::path golden_file(const std::string& name);

std::vector<Case> read_cases(const std::filesystem::path& file);

/// The ids as names for GoogleTest's filter, all different.
std::vector<std::string> test_names(const std::vector<Case>& cases);

}  // namespace lockstep::golden
