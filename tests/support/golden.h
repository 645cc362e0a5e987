#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::golden {

/// One case of the golden data: inputs and TensorFlow 2.20's results.
struct Case {
  nlohmann::json json;

  const nlohmann::json& operator[](const char* key) const { return json.at(key); }
  const nlohmann::json& expect() const { return json.at("expect"); }
};

inline void PrintTo(const Case& given, std::ostream* out) { *out << given.json.dump(); }

inline void append_file(const std::filesystem::path& file, const std::string& area, std::vector<Case>& into) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot read " + file.string());
  for (auto& json : nlohmann::json::parse(in)) {
    if (json.at("area") == area) into.push_back({std::move(json)});
  }
}

/// The cases of an area, from the test data and from all files of the folder in LOCKSTEP_GOLDEN_DIR.
inline std::vector<Case> cases(const std::string& area) {
  std::vector<Case> result;
  append_file(std::filesystem::path(LOCKSTEP_TEST_DATA_DIR) / "golden" / (area + ".json"), area, result);
  if (const char* folder = std::getenv("LOCKSTEP_GOLDEN_DIR")) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".json") append_file(entry.path(), area, result);
    }
  }
  return result;
}

/// The case's id in a form that GoogleTest can show; the position distinguishes names that differ in punctuation only.
inline std::string name(const ::testing::TestParamInfo<Case>& info) {
  auto result = info.param["id"].get<std::string>() + "_" + std::to_string(info.index);
  for (char& c : result) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return result;
}

/// The code that corresponds to an exception of TensorFlow.
inline Code code_for(const std::string& exception) {
  if (exception == "RuntimeError" || exception == "FailedPrecondition") return Code::FailedPrecondition;
  if (exception == "NotImplementedError") return Code::Unimplemented;
  if (exception == "OutOfRangeError" || exception == "OutOfRange" || exception == "StopIteration") {
    return Code::OutOfRange;
  }
  if (exception == "NotFoundError" || exception == "NotFound") return Code::NotFound;
  return Code::InvalidArgument;
}

/// Calls `function`; true if it succeeded. If the case expects an error, it is checked here. TensorFlow's wording is
/// advice and not compared.
template <class Function>
bool succeeds_as_expected(const Case& given, Function&& function) {
  const auto expected = given.expect().find("error");
  const bool wants_error = expected != given.expect().end();
  try {
    function();
  } catch (const Error& error) {
    EXPECT_TRUE(wants_error) << error.what();
    if (wants_error) {
      EXPECT_EQ(error.code(), code_for(*expected)) << error.what();
    }
    return false;
  }
  EXPECT_FALSE(wants_error) << "no error, but TensorFlow raises " << expected->dump();
  return !wants_error;
}

}  // namespace lockstep::golden
