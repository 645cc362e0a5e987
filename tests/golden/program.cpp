#include "tests/golden/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>

namespace lockstep::golden {
namespace {

class GoldenCase : public ::testing::Test {
 public:
  GoldenCase(GoldenSet& set, const Case& given) : set_(set), given_(given) {}

  void TestBody() override {
    try {
      if (owner_of(given_.data) == Program::None) throw UnknownForm(unowned_area(given_.data));
      set_.check(given_);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) std::cout << "case: " << given_.data.dump().substr(0, 2000) << '\n';
  }
  void TearDown() override {
    if (HasFailure()) set_.after_failure();
  }

 private:
  GoldenSet& set_;
  const Case& given_;
};

class GoldenCounts : public ::testing::Test {
 public:
  explicit GoldenCounts(const GoldenSet& set) : set_(set) {}
  void TestBody() override { set_.check_counts(); }

 private:
  const GoldenSet& set_;
};

using Elsewhere = std::map<Program, std::map<std::string, int>>;

void print_elsewhere(const Elsewhere& elsewhere) {
  for (const auto& [program, areas] : elsewhere) {
    std::cout << "  run by " << to_string(program) << ", not here:";
    for (const auto& [area, count] : areas) std::cout << ' ' << area << ' ' << count;
    std::cout << '\n';
  }
}

}  // namespace

int run_golden_set(int argc, char** argv, GoldenSet& set) try {
  ::testing::InitGoogleTest(&argc, argv);
  const std::vector<Case> cases = read_cases(golden_file(set.file()));
  const std::vector<std::string> names = test_names(cases);
  Elsewhere elsewhere;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (const Program owner = owner_of(cases[i].data); owner != set.program() && owner != Program::None) {
      ++elsewhere[owner][cases[i].area()];
      continue;
    }
    set.count(cases[i]);
    ::testing::RegisterTest(("golden_" + cases[i].area()).c_str(), names[i].c_str(), nullptr, nullptr, __FILE__,
                            __LINE__,
                            [&set, &given = cases[i]]() -> ::testing::Test* { return new GoldenCase(set, given); });
  }
  ::testing::RegisterTest("golden_census", "FewCasesAreExceptions", nullptr, nullptr, __FILE__, __LINE__,
                          [&set]() -> ::testing::Test* { return new GoldenCounts(set); });
  const int failed = RUN_ALL_TESTS();
  if (!::testing::GTEST_FLAG(list_tests)) {
    set.print_counts(std::cout);
    print_elsewhere(elsewhere);
  }
  return failed;
} catch (const std::exception& error) {
  std::cerr << set.file() << ": " << error.what() << '\n';
  return 1;
}

}  // namespace lockstep::golden
