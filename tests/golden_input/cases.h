#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/golden/case.h"

// The cases of input.json.
namespace lockstep::golden_input {

using golden::json;
using golden::UnknownForm;

/// One case: inputs, and what TensorFlow 2.20 made of them.
struct Case {
  json data;

  std::string id() const { return data.at("id"); }
  std::string area() const { return data.at("area"); }
  std::string quirk() const { return data.value("quirk", ""); }
  const json& expect() const { return data.at("expect"); }
  bool expects_error() const { return expect().contains("error"); }

  int workers() const { return data.value("workers", 1); }
  int replicas_per_worker() const { return data.value("replicas_per_worker", 1); }
  bool has(const char* key) const { return data.contains(key); }
  const json& operator[](const char* key) const { return data.at(key); }
};

/// In the folder that LOCKSTEP_GOLDEN_DIR names, else in the project's test data.
std::filesystem::path input_file();
std::vector<Case> read_cases(const std::filesystem::path& file);
/// The ids as names that GoogleTest can filter by, each one once.
std::vector<std::string> test_names(const std::vector<Case>& cases);

/// What a case came to, in the form of `expect`. UnknownForm if the program does not understand it.
json run_area(const Case& given);
bool is_input_area(const std::string& area);

/// What differs between what was expected and what came; nothing if all is well. Structures are compared leaf by leaf,
/// floats with a relative tolerance of 1e-5, of errors the kind. Keys of `got` that were not expected do not count.
std::string difference(const json& expected, const json& got, const std::string& path = "");

/// Where Lockstep does something else on purpose, or C++ leaves nothing to test.
struct Exception {
  bool meaningless = false;  ///< there is nothing in C++ to compare with
  std::string reason;
  json expect;  ///< what is expected instead; null if meaningless
};
std::optional<Exception> exception_for(const Case& given);

}  // namespace lockstep::golden_input
