#pragma once

#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::golden {

using nlohmann::json;

/// A case has a form that this program does not understand: a failure of the test, whatever the case expects.
struct UnknownForm : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws UnknownForm if `object` is no object or has a key that is none of `known`.
void allow_only(const json& object, std::initializer_list<const char*> known, const std::string& what);

/// `text` is none of the values that `what` can have.
[[noreturn]] void unknown_value(const std::string& what, const json& value);

/// One case of the golden data: inputs, and what TensorFlow 2.20 made of them.
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

/// A file in the folder that LOCKSTEP_GOLDEN_DIR names, else in the project's test data.
std::filesystem::path golden_file(const std::string& name);

std::vector<Case> read_cases(const std::filesystem::path& file);

/// The ids as names that GoogleTest can filter by, each one once.
std::vector<std::string> test_names(const std::vector<Case>& cases);

}  // namespace lockstep::golden
