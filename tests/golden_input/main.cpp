#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <optional>

#include "lockstep/base/text.h"
#include "tests/golden_input/cases.h"
#include "tests/golden_input/values.h"

namespace lockstep::golden_input {
namespace {

class GoldenCase : public ::testing::Test {
 public:
  explicit GoldenCase(const Case& given) : given_(given) {}

  void TestBody() override {
    try {
      const auto exception = exception_for(given_);
      if (exception && exception->meaningless) return;
      json expected = exception ? exception->expect : given_.expect();
      expected.erase("traces");  // how often TensorFlow built a graph: there are none
      const json got = outcome_of([&] { return run_area(given_); });
      if (const std::string found = difference(expected, got); !found.empty()) {
        ADD_FAILURE() << found << (exception ? str("\nexpected by our own rule, ", exception->reason) : std::string())
                      << "\ncase: " << given_.data.dump().substr(0, 2000)
                      << (got.contains("text") ? str("\n", got["text"].get<std::string>()) : std::string());
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\ncase: " << given_.data.dump().substr(0, 2000);
    }
  }

 private:
  const Case& given_;
};

/// Which cases there are, which are exceptions for which reason, and which are not run by this program at all.
class Census {
 public:
  explicit Census(const std::vector<Case>& cases) {
    for (const Case& given : cases) {
      if (!is_input_area(given.area())) {
        ++elsewhere_[given.area()];
        continue;
      }
      ++total_;
      ++areas_[given.area()];
      std::optional<Exception> exception;
      try {
        exception = exception_for(given);
      } catch (const std::exception&) {  // a case that cannot even be looked at fails as a test
      }
      if (!exception) continue;
      ++exceptions_[exception->reason];
      if (exception->meaningless || given.quirk().empty()) ++not_quirks_;
    }
  }

  /// Quirks of TensorFlow may be decided otherwise; of all other cases at most one in twenty.
  bool few_exceptions() const { return not_quirks_ * 20 <= total_; }

  void print(std::ostream& out) const {
    out << total_ << " cases of input:";
    for (const auto& [area, count] : areas_) out << ' ' << area << ' ' << count;
    out << '\n';
    for (const auto& [reason, count] : exceptions_) out << "  " << count << " exceptions: " << reason << '\n';
    out << "  " << not_quirks_ << " of them are not marked as quirks\n";
    if (elsewhere_.empty()) return;
    out << "not run here, because they are about clusters and not about input:";
    for (const auto& [area, count] : elsewhere_) out << ' ' << area << ' ' << count;
    out << '\n';
  }

 private:
  std::size_t total_ = 0, not_quirks_ = 0;
  std::map<std::string, int> areas_, elsewhere_, exceptions_;
};

class FewExceptions : public ::testing::Test {
 public:
  explicit FewExceptions(const Census& census) : census_(census) {}
  void TestBody() override { EXPECT_TRUE(census_.few_exceptions()) << "more than 5 % of the cases are exceptions"; }

 private:
  const Census& census_;
};

int run(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::vector<Case> cases = read_cases(input_file());
  const std::vector<std::string> names = test_names(cases);
  const Census census(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!is_input_area(cases[i].area())) continue;
    ::testing::RegisterTest(str("golden_", cases[i].area()).c_str(), names[i].c_str(), nullptr, nullptr, __FILE__,
                            __LINE__, [&given = cases[i]]() -> ::testing::Test* { return new GoldenCase(given); });
  }
  ::testing::RegisterTest("golden_census", "FewCasesAreExceptions", nullptr, nullptr, __FILE__, __LINE__,
                          [&census]() -> ::testing::Test* { return new FewExceptions(census); });
  const int failed = RUN_ALL_TESTS();
  if (!::testing::GTEST_FLAG(list_tests)) census.print(std::cout);
  return failed;
}

}  // namespace
}  // namespace lockstep::golden_input

int main(int argc, char** argv) {
  try {
    return lockstep::golden_input::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "golden_input_test: " << error.what() << '\n';
    return 1;
  }
}
