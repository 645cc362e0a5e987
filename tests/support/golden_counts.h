#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <map>
#include <ostream>
#include <string>

namespace lockstep::golden {

/// How many cases a golden program runs, by area, and how many of them are exceptions, by reason.
class GoldenCounts {
 public:
  /// `exception_for(given)` is the case's exception, if it has one.
  template <class Case, class ExceptionFor>
  void add(const Case& given, ExceptionFor exception_for) {
    ++total_;
    ++areas_[given.area()];
    try {
      const auto exception = exception_for(given);
      if (!exception) return;
      ++exceptions_[exception->reason];
      if (exception->meaningless || given.quirk().empty()) ++not_quirks_;
    } catch (const std::exception&) {  // a case that cannot be read fails as a test
    }
  }

  /// Quirks of TensorFlow may be decided differently; of all other cases at most one in twenty.
  void check() const { EXPECT_LE(not_quirks_ * 20, total_) << "more than 5 % of the cases are exceptions"; }

  int of_area(const std::string& area) const {
    const auto found = areas_.find(area);
    return found == areas_.end() ? 0 : found->second;
  }

  void print(std::ostream& out, const char* kind) const {
    out << total_ << " cases of " << kind << ':';
    for (const auto& [area, count] : areas_) out << ' ' << area << ' ' << count;
    out << '\n';
    for (const auto& [reason, count] : exceptions_) out << "  " << count << " exceptions: " << reason << '\n';
    out << "  " << not_quirks_ << " of them are not marked as quirks\n";
  }

 private:
  std::size_t total_ = 0, not_quirks_ = 0;
  std::map<std::string, int> areas_, exceptions_;
};

}  // namespace lockstep::golden
