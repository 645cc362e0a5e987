#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "tests/golden/program.h"
#include "tests/golden_cluster/cases.h"
#include "tests/golden_input/cases.h"
#include "tests/support/golden_counts.h"

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
    // Cases of several workers are computed numbers, the others are texts and facts.
    const std::string found = is_multi_worker(given) ? golden_input::difference(expected, run_area(given))
                                                     : difference(expected, run_area(given));
    if (!found.empty()) {
      ADD_FAILURE() << found << (exception ? str("\nexpected by our own rule, ", exception->reason) : std::string());
    }
  }

  void count(const Case& given) override {
    counts_.add(given, exception_for);
    if (is_multi_worker(given)) remember_for_job(given);
  }
  void check_counts() const override { counts_.check(); }
  void print_counts(std::ostream& out) const override {
    counts_.print(out, "clusters");
    if (const int count = counts_.of_area("multi_worker"); count > 0 && !runs_multi_worker())
      out << "  not run: multi_worker " << count << ", " << kNotBuilt << '\n';
  }

 private:
  golden::GoldenCounts counts_;
};

}  // namespace
}  // namespace lockstep::golden_cluster

int main(int argc, char** argv) {
  lockstep::golden_cluster::Clusters clusters;
  return lockstep::golden::run_golden_set(argc, argv, clusters);
}
