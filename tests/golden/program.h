#pragma once

#include <iosfwd>
#include <string>

#include "tests/golden/case.h"
#include "tests/support/golden_areas.h"

namespace lockstep::golden {

/// The cases of one file as tests: what to do with each, and what is said about all of them.
class GoldenSet {
 public:
  virtual ~GoldenSet() = default;

  virtual std::string file() const = 0;  ///< "semantics.json"
  virtual Program program() const = 0;   ///< the one that this is: its areas are run, others belong elsewhere
  /// Runs a case. Failures are GoogleTest's, or exceptions.
  virtual void check(const Case& given) = 0;
  virtual void after_failure() {}

  /// Called for every case that is run, before any is.
  virtual void count(const Case& given) = 0;
  /// A test of its own: exceptions must stay few.
  virtual void check_counts() const = 0;
  virtual void print_counts(std::ostream& out) const = 0;
};

/// The whole program: every case is a test, named after its id. Cases of areas that other programs own are counted and
/// left to them; a case whose area no program owns fails and says so (tests/support/golden_areas.h).
int run_golden_set(int argc, char** argv, GoldenSet& set);

}  // namespace lockstep::golden
