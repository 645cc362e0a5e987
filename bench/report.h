#pragma once

#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::bench {

/// The goal of a benchmark: a median of at most `limit`.
struct Goal {
  std::string what;
  std::string benchmark;
  std::string counter = {};  ///< which of its counters; empty: its time, in microseconds
  double limit = 0;
  std::string unit = "us";
};

/// A figure measured in several rounds.
struct Spread {
  double median = 0;
  double low = 0;   ///< a quarter of the rounds are below
  double high = 0;  ///< a quarter of the rounds are above
  double least = 0;
};

/// Gives a benchmark rounds: Google Benchmark calls it `count` times and the report shows the spread.
benchmark::internal::Benchmark* in_rounds(benchmark::internal::Benchmark* benchmark, int count);

/// Prints a line per benchmark (times and counters as medians with their 25-75 % range) and then the goals.
class Report final : public benchmark::BenchmarkReporter {
 public:
  explicit Report(std::vector<Goal> goals) : goals_(std::move(goals)) {}

  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

 private:
  struct Figures {
    Spread microseconds;
    std::map<std::string, Spread> counters;
  };

  std::vector<Goal> goals_;
  std::map<std::string, Figures> seen_;
};

}  // namespace lockstep::bench
