#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "tests/golden/program.h"
#include "tests/golden_input/cases.h"
#include "tests/golden_input/values.h"
#include "tests/support/golden_counts.h"

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
    expected.erase("traces");  // how often TensorFlow built a graph: there are none here
    const json got = outcome_of([&] { return run_area(given); });
    if (const std::string found = difference(expected, got); !found.empty()) {
      ADD_FAILURE() << found << (exception ? str("\nexpected by our own rule, ", exception->reason) : std::string())
                    << (got.contains("text") ? str("\n", got["text"].get<std::string>()) : std::string());
    }
  }

  void count(const Case& given) override { counts_.add(given, exception_for); }
  void check_counts() const override { counts_.check(); }
  void print_counts(std::ostream& out) const override { counts_.print(out, "input"); }

 private:
  golden::GoldenCounts counts_;
};

}  // namespace
}  // namespace lockstep::golden_input

int main(int argc, char** argv) {
  lockstep::golden_input::Input input;
  return lockstep::golden::run_golden_set(argc, argv, input);
}
