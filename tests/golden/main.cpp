#include <gtest/gtest.h>

#include <iostream>
#include <map>

#include "lockstep/base/text.h"
#include "tests/golden/areas.h"
#include "tests/golden/case.h"
#include "tests/golden/exceptions.h"
#include "tests/golden/json_value.h"
#include "tests/golden/outcome.h"
#include "tests/golden/session.h"

namespace lockstep::golden {
namespace {

class GoldenCase : public ::testing::Test {
 public:
  explicit GoldenCase(const Case& given) : given_(given) {}

  void TestBody() override {
    try {
      const auto exception = exception_for(given_);
      if (exception && !exception->expect) return;
      json expected = exception ? *exception->expect : given_.expect();
      json got = outcome_of([&] { return run_area(given_); });
      compare_events_per_replica(given_, expected, got);
      if (const auto found = difference(expected, got)) {
        ADD_FAILURE() << *found << (exception ? "\nexpected by our own rule, " + exception->reason : "")
                      << "\ncase: " << given_.data.dump();
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\ncase: " << given_.data.dump();
    }
  }

  void TearDown() override {
    if (HasFailure()) forget_strategies();
  }

 private:
  const Case& given_;
};

/// What is said about the cases as a whole: how many there are, and which are exceptions for which reason.
class Census {
 public:
  explicit Census(const std::vector<Case>& cases) {
    for (const Case& given : cases) {
      ++areas_[given.area()];
      if (given.quirk().empty()) ++plain_;
      if (const auto exception = find(given)) {
        ++exceptions_[{exception->kind, exception->reason}];
        if (exception->kind == Exception::Kind::Meaningless) ++meaningless_;
      }
    }
    total_ = cases.size();
  }

  bool few_are_meaningless() const { return meaningless_ * 20 <= plain_; }

  void print(std::ostream& out) const {
    out << total_ << " cases:";
    for (const auto& [area, count] : areas_) out << ' ' << area << ' ' << count;
    out << '\n';
    for (const auto& [exception, count] : exceptions_) {
      out << "  " << count
          << (exception.first == Exception::Kind::Decided ? " decided, "
              : exception.first == Exception::Kind::Order ? " ordered, "
                                                          : " meaningless: ")
          << exception.second << '\n';
    }
    out << "  " << meaningless_ << " of " << plain_ << " cases that are no quirks are meaningless in C++\n";
  }

 private:
  /// A case that cannot even be looked at fails as a test.
  static std::optional<Exception> find(const Case& given) {
    try {
      return exception_for(given);
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  std::size_t total_ = 0, plain_ = 0, meaningless_ = 0;
  std::map<std::string, int> areas_;
  std::map<std::pair<Exception::Kind, std::string>, int> exceptions_;
};

class FewAreMeaningless : public ::testing::Test {
 public:
  explicit FewAreMeaningless(const Census& census) : census_(census) {}
  void TestBody() override {
    EXPECT_TRUE(census_.few_are_meaningless()) << "more than 5 % of the cases have no meaning in C++";
  }

 private:
  const Census& census_;
};

int run(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::vector<Case> cases = read_cases(semantics_file());
  const std::vector<std::string> names = test_names(cases);
  const Census census(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    ::testing::RegisterTest(("golden_" + cases[i].area()).c_str(), names[i].c_str(), nullptr, nullptr, __FILE__,
                            __LINE__, [&given = cases[i]]() -> ::testing::Test* { return new GoldenCase(given); });
  }
  ::testing::RegisterTest("golden_census", "FewCasesAreMeaningless", nullptr, nullptr, __FILE__, __LINE__,
                          [&census]() -> ::testing::Test* { return new FewAreMeaningless(census); });
  const int failed = RUN_ALL_TESTS();
  if (!::testing::GTEST_FLAG(list_tests)) census.print(std::cout);
  forget_strategies();
  return failed;
}

}  // namespace
}  // namespace lockstep::golden

int main(int argc, char** argv) {
  try {
    return lockstep::golden::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "golden_semantics_test: " << error.what() << '\n';
    return 1;
  }
}
