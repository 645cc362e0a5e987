#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <optional>

#include "tests/golden/areas.h"
#include "tests/golden/exceptions.h"
#include "tests/golden/json_value.h"
#include "tests/golden/outcome.h"
#include "tests/golden/program.h"
#include "tests/golden/session.h"

namespace lockstep::golden {
namespace {

class Semantics final : public GoldenSet {
 public:
  std::string file() const override { return "semantics.json"; }
  Program program() const override { return Program::Semantics; }

  void check(const Case& given) override {
    const auto exception = exception_for(given);
    if (exception && !exception->expect) return;
    json expected = exception ? *exception->expect : given.expect();
    json got = outcome_of([&] { return run_area(given); });
    compare_events_per_replica(given, expected, got);
    if (const auto found = difference(expected, got)) {
      ADD_FAILURE() << *found << (exception ? "\nexpected by our own rule, " + exception->reason : "");
    }
  }
  void after_failure() override { forget_strategies(); }

  void count(const Case& given) override {
    ++total_;
    ++areas_[given.area()];
    if (given.quirk().empty()) ++plain_;
    std::optional<Exception> exception;
    try {
      exception = exception_for(given);
    } catch (const std::exception&) {  // a case that cannot be read fails as a test
    }
    if (!exception) return;
    ++exceptions_[{exception->kind, exception->reason}];
    if (exception->kind == Exception::Kind::Meaningless) ++meaningless_;
  }

  void check_counts() const override {
    EXPECT_LE(meaningless_ * 20, plain_) << "more than 5 % of the cases have no meaning in C++";
  }

  void print_counts(std::ostream& out) const override {
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
    out << "  " << meaningless_ << " of " << plain_ << " cases that are not quirks are meaningless in C++\n";
  }

 private:
  std::size_t total_ = 0, plain_ = 0, meaningless_ = 0;
  std::map<std::string, int> areas_;
  std::map<std::pair<Exception::Kind, std::string>, int> exceptions_;
};

}  // namespace
}  // namespace lockstep::golden

int main(int argc, char** argv) {
  lockstep::golden::Semantics semantics;
  const int failed = lockstep::golden::run_golden_set(argc, argv, semantics);
  lockstep::golden::forget_strategies();
  return failed;
}
