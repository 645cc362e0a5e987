#pragma once

#include <iosfwd>
#include <string>

#include "tests/golden/case.h"

namespace lockstep::golden {

/// The cases of one file as tests: what to do with each, and what is said about all of them.
class GoldenSet {
 public:
  virtual ~GoldenSet() = default;

  virtual std::string file() const = 0;  ///< "semantics.json"
  /// Whether the case is run; those that are not are counted all the same.
  virtual bool includes(const Case&) const { return true; }
  /// Runs a case. Failures are GoogleTest's, or exceptions.
  virtual void check(const Case& given) = 0;
  virtual void after_failure() {}

  /// Called for every case, before any is run.
  virtual void count(const Case& given) = 0;
  /// A test of its own: exceptions must stay few.
  virtual void check_counts() const = 0;
  virtual void print_counts(std::ostream& out) const = 0;
};

/// The whole program: every case is a test, named after its id.
int run_golden_set(int argc, char** argv, GoldenSet& set);

}  // namespace lockstep::golden
