#pragma once

#include <iosfwd>
#include <string>

#include "tests/golden/case.h"
#include "tests/support/golden_areas.h"

namespace lockstep::golden {

/// The cases of one file as tests: how to run each, and checks over all of them.
class GoldenSet {
 public:
  virtual ~GoldenSet() = default;

  virtual std::string file() const = 0;  ///< "semantics.json"
  virtual Program program() const = 0;   ///< this program: it runs its own areas, others belong elsewhere
  /// Runs a case. Failures are GoogleTest's, or exceptions.
  virtual void check(const Case& given) = 0;
  virtual void after_failure() {}

  /// Called for every case to run, before the first one.
  virtual void count(const Case& given) = 0;
  /// A separate test: exceptions must stay few.
  virtual void check_counts() const = 0;
  virtual void print_counts(std::ostream& out) const = 0;
};

/// The whole program: every case is a test, named after its id. Cases of areas that other programs own are counted and
/// left to them; a case whose area no program owns fails with that message (tests/support/golden_areas.h).
int run_golden_set(int argc, char** argv, GoldenSet& set);

}  // namespace lockstep::golden
