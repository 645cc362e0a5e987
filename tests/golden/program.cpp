#include "tests/golden/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

namespace lockstep::golden {
namespace {

class GoldenCase : public ::testing::Test {
 public:
  GoldenCase(GoldenSet& set, const Case& given) : set_(set), given_(given) {}

  void TestBody() override {
    try {
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

}  // namespace

int run_golden_set(int argc, char** argv, GoldenSet& set) try {
  ::testing::InitGoogleTest(&argc, argv);
  const std::vector<Case> cases = read_cases(golden_file(set.file()));
  const std::vector<std::string> names = test_names(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    set.count(cases[i]);
    if (!set.includes(cases[i])) continue;
    ::testing::RegisterTest(("golden_" + cases[i].area()).c_str(), names[i].c_str(), nullptr, nullptr, __FILE__,
                            __LINE__,
                            [&set, &given = cases[i]]() -> ::testing::Test* { return new GoldenCase(set, given); });
  }
  ::testing::RegisterTest("golden_census", "FewCasesAreExceptions", nullptr, nullptr, __FILE__, __LINE__,
                          [&set]() -> ::testing::Test* { return new GoldenCounts(set); });
  const int failed = RUN_ALL_TESTS();
  if (!::testing::GTEST_FLAG(list_tests)) set.print_counts(std::cout);
  return failed;
} catch (const std::exception& error) {
  std::cerr << set.file() << ": " << error.what() << '\n';
  return 1;
}

}  // namespace lockstep::golden
