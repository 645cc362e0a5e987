#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <optional>

#include "lockstep/base/text.h"
#include "tests/golden/program.h"
#include "tests/golden_input/cases.h"
#include "tests/golden_input/values.h"

namespace lockstep::golden_input {
namespace {

class Input final : public golden::GoldenSet {
 public:
  std::string file() const override { return "input.json"; }
  golden::Program program() const override { return golden::Program::Input; }

  void check(const Case& given) override {
    const auto exception = exception_for(given);
    if (exception && exception->meaningless) return;
    json expected = exception ? exception->expect : given.expect();
    expected.erase("traces");  // how often TensorFlow built a graph: there are none
    const json got = outcome_of([&] { return run_area(given); });
    if (const std::string found = difference(expected, got); !found.empty()) {
      ADD_FAILURE() << found << (exception ? str("\nexpected by our own rule, ", exception->reason) : std::string())
                    << (got.contains("text") ? str("\n", got["text"].get<std::string>()) : std::string());
    }
  }

  void count(const Case& given) override {
    ++total_;
    ++areas_[given.area()];
    std::optional<Exception> exception;
    try {
      exception = exception_for(given);
    } catch (const std::exception&) {  // a case that cannot even be looked at fails as a test
    }
    if (!exception) return;
    ++exceptions_[exception->reason];
    if (exception->meaningless || given.quirk().empty()) ++not_quirks_;
  }

  /// Quirks of TensorFlow may be decided otherwise; of all other cases at most one in twenty.
  void check_counts() const override {
    EXPECT_LE(not_quirks_ * 20, total_) << "more than 5 % of the cases are exceptions";
  }

  void print_counts(std::ostream& out) const override {
    out << total_ << " cases of input:";
    for (const auto& [area, count] : areas_) out << ' ' << area << ' ' << count;
    out << '\n';
    for (const auto& [reason, count] : exceptions_) out << "  " << count << " exceptions: " << reason << '\n';
    out << "  " << not_quirks_ << " of them are not marked as quirks\n";
  }

 private:
  std::size_t total_ = 0, not_quirks_ = 0;
  std::map<std::string, int> areas_, exceptions_;
};

}  // namespace
}  // namespace lockstep::golden_input

int main(int argc, char** argv) {
  lockstep::golden_input::Input input;
  return lockstep::golden::run_golden_set(argc, argv, input);
}
