#include <gtest/gtest.h>

#include <iostream>
#include <map>

#include "lockstep/base/text.h"
#include "tests/golden/program.h"
#include "tests/golden_cluster/cases.h"
#include "tests/golden_input/cases.h"

namespace lockstep::golden_cluster {
namespace {

constexpr const char* kNotBuilt = "built without LOCKSTEP_CLUSTER";

bool is_multi_worker(const Case& given) { return given.area() == "multi_worker"; }

class Clusters final : public golden::GoldenSet {
 public:
  std::string file() const override { return "input.json"; }
  golden::Program program() const override { return golden::Program::Cluster; }

  void check(const Case& given) override {
    const auto exception = exception_for(given);
    if (exception && exception->meaningless) return;
    if (is_multi_worker(given) && !runs_multi_worker()) GTEST_SKIP() << kNotBuilt;
    const json& expected = exception ? exception->expect : given.expect();
    // Those of several workers are numbers that were computed, the others texts and facts.
    const std::string found = is_multi_worker(given) ? golden_input::difference(expected, run_area(given))
                                                     : difference(expected, run_area(given));
    if (!found.empty()) {
      ADD_FAILURE() << found << (exception ? str("\nexpected by our own rule, ", exception->reason) : std::string());
    }
  }

  void count(const Case& given) override {
    ++total_;
    ++areas_[given.area()];
    if (is_multi_worker(given)) remember_for_job(given);
    try {
      const auto exception = exception_for(given);
      if (!exception) return;
      ++exceptions_[exception->reason];
      if (exception->meaningless || given.quirk().empty()) ++not_quirks_;
    } catch (const std::exception&) {  // a case that cannot even be looked at fails as a test
    }
  }

  /// Quirks of TensorFlow may be decided otherwise; of all other cases at most one in twenty.
  void check_counts() const override {
    EXPECT_LE(not_quirks_ * 20, total_) << "more than 5 % of the cases are exceptions";
  }

  void print_counts(std::ostream& out) const override {
    out << total_ << " cases of clusters:";
    for (const auto& [area, count] : areas_) out << ' ' << area << ' ' << count;
    out << '\n';
    if (const auto found = areas_.find("multi_worker"); found != areas_.end() && !runs_multi_worker())
      out << "  not run: multi_worker " << found->second << ", " << kNotBuilt << '\n';
    for (const auto& [reason, count] : exceptions_) out << "  " << count << " exceptions: " << reason << '\n';
    out << "  " << not_quirks_ << " of them are not marked as quirks\n";
  }

 private:
  std::size_t total_ = 0, not_quirks_ = 0;
  std::map<std::string, int> areas_, exceptions_;
};

}  // namespace
}  // namespace lockstep::golden_cluster

int main(int argc, char** argv) {
  lockstep::golden_cluster::Clusters clusters;
  return lockstep::golden::run_golden_set(argc, argv, clusters);
}
