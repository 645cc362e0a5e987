#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A training step of a program that is being measured: from the end of the step before to its own end, with its input.
struct TunedStep {
  double seconds = 0;
  std::int64_t rows = 0;  ///< rows of all replicas; 0: unknown
};

/// The file by which such a program reports: a line that says what it is, then one for each step.
///
///     program 2 8 16 /home/me/train
///     step 0.0125 64
struct TuneReport {
  int replicas = 0;     ///< 0: it has taken no step yet
  int threads = 0;      ///< threads of each replica
  int cores = 0;        ///< usable by the program
  std::string program;  ///< the name under which its number of replicas is remembered; empty: there are several
  std::vector<TunedStep> steps;
};

std::string head_line(const TuneReport& report);
std::string step_line(const TunedStep& step);
/// Adds the lines of `text` to the report. Returns how many bytes they had: a last line without its end is still being written.
std::size_t read_report(std::string_view text, TuneReport& report);

/// The first steps choose kernels and fill caches.
inline constexpr std::size_t kWarmUpSteps = 3;

/// Whether they are enough for a round of this length: warm, at least five and so many seconds.
bool are_enough(const std::vector<TunedStep>& steps, double round_seconds);

/// The median step of a round, without its warm-up unless there are no others. Steps that begin an epoch or follow a validation are
/// the rare long ones, which a median leaves out.
TunedStep median_step(const std::vector<TunedStep>& steps);

/// The middle of sorted values, or the mean of the middle two; 0 of none.
double median(std::vector<double> values);

}  // namespace lockstep
