#include "tests/golden/case.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>

namespace lockstep::golden {

void allow_only(const json& object, std::initializer_list<const char*> known, const std::string& what) {
  if (!object.is_object()) throw UnknownForm(what + " is not an object: " + object.dump());
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw UnknownForm(what + " has the unknown field \"" + key + "\": " + value.dump());
    }
  }
}

void unknown_value(const std::string& what, const json& value) {
  throw UnknownForm("unknown " + what + ": " + value.dump());
}

void Case::allow_inputs(std::initializer_list<const char*> known) const {
  json inputs = data;
  for (const char* common : {"id", "area", "replicas", "quirk", "expect"}) inputs.erase(common);
  if (const json order = inputs.value("rounding", json("sequential")); order != "sequential")
    unknown_value("rounding", order);
  allow_only(inputs, known, "a case of area " + area());
}

std::filesystem::path golden_file(const std::string& name) {
  if (const char* folder = std::getenv("LOCKSTEP_GOLDEN_DIR")) return std::filesystem::path(folder) / name;
  return std::filesystem::path(LOCKSTEP_TEST_DATA_DIR) / "golden" / name;
}

std::vector<Case> read_cases(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot read " + file.string());
  std::vector<Case> cases;
  for (json& data : json::parse(in)) {
    for (const char* key : {"id", "area", "expect"}) {
      if (!data.contains(key)) throw std::runtime_error(file.string() + ": a case has no " + key + ": " + data.dump());
    }
    cases.push_back({std::move(data)});
  }
  if (cases.empty()) throw std::runtime_error(file.string() + " has no cases");
  return cases;
}

std::vector<std::string> test_names(const std::vector<Case>& cases) {
  std::vector<std::string> names;
  std::map<std::string, int> uses;
  for (const Case& given : cases) {
    std::string name = given.id();
    for (char& c : name) {
      if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    }
    // Ids that differ in punctuation only must not share a name.
    if (const int before = uses[name]++) name += "__" + std::to_string(before + 1);
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace lockstep::golden
