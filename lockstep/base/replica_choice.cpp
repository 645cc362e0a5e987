#include "lockstep/base/replica_choice.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/base/tune_report.h"

namespace lockstep {
namespace {

constexpr double kLeastNoise = 0.02, kMostNoise = 0.05, kBusyMachine = 0.1, kSameBatch = 0.1;

bool is_measured(const ReplicaMeasurement& each) { return !each.rounds.empty(); }
double seconds_of(const ReplicaMeasurement& each) { return median(each.rounds); }

/// Rows are only compared if they are known of all.
bool by_rows(const std::vector<ReplicaMeasurement>& measured) {
  return std::ranges::all_of(measured, [](const auto& each) { return !is_measured(each) || each.rows > 0; });
}

/// Rows per second, or steps.
double speed_of(const ReplicaMeasurement& each, bool of_rows) {
  return (of_rows ? static_cast<double>(each.rows) : 1) / seconds_of(each);
}

/// How far apart the rounds of one number are at most, relative to their median.
double spread_of(const std::vector<ReplicaMeasurement>& measured) {
  double most = 0;
  for (const auto& each : measured) {
    if (each.rounds.size() < 2) continue;
    const auto [least, greatest] = std::ranges::minmax(each.rounds);
    most = std::max(most, (greatest - least) / seconds_of(each));
  }
  return most;
}

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

std::string percent(double part) { return str(std::lround(100 * part), " %"); }

/// Why the fastest was not taken, or what is to be known of the comparison.
std::string remarks(const std::vector<ReplicaMeasurement>& measured, bool of_rows, double spread) {
  std::string text;
  std::int64_t least = 0, most = 0;
  for (const auto& each : measured) {
    if (!is_measured(each)) continue;
    least = least == 0 ? each.rows : std::min(least, each.rows);
    most = std::max(most, each.rows);
  }
  if (of_rows && static_cast<double>(most - least) > kSameBatch * static_cast<double>(least))
    text += str(" A step has ", least, " to ", most,
                " rows: the batch grows with the replicas, so rows are compared, and the training is another one.");
  if (!of_rows)
    text +=
        " Rows are unknown, so steps are compared: if the batch grows with the replicas, pass it to `run` as an argument.";
  if (spread > kBusyMachine)
    text += str(" Rounds differ by up to ", percent(spread), ": the machine was busy, so measure again.");
  return text;
}

}  // namespace

std::vector<int> plan_replicas(int cores) {
  std::vector<int> numbers;
  for (int n = 1; n < cores; n *= 2) numbers.push_back(n);
  numbers.push_back(std::max(1, cores));
  return numbers;
}

ReplicaChoice choose_replicas(const std::vector<ReplicaMeasurement>& measured) {
  const bool of_rows = by_rows(measured);
  const ReplicaMeasurement* fastest = nullptr;
  for (const auto& each : measured) {
    if (is_measured(each) && (!fastest || speed_of(each, of_rows) > speed_of(*fastest, of_rows))) fastest = &each;
  }
  if (!fastest) return {0, "no number of replicas could be measured"};
  const double spread = spread_of(measured);
  const double noise = std::clamp(spread / 2, kLeastNoise, kMostNoise);
  const ReplicaMeasurement* best = fastest;
  for (const auto& each : measured) {
    const bool is_as_fast = is_measured(each) && speed_of(each, of_rows) >= (1 - noise) * speed_of(*fastest, of_rows);
    if (is_as_fast && each.replicas < best->replicas) best = &each;
  }
  std::string why = str(counted(best->replicas, "replica"), " with ", counted(best->threads, "thread"), " each");
  const auto one = std::ranges::find(measured, 1, &ReplicaMeasurement::replicas);
  if (one != measured.end() && is_measured(*one) && best->replicas > 1)
    why += str(", ", fixed(speed_of(*best, of_rows) / speed_of(*one, of_rows), 2), " times as fast as one replica");
  const double ahead = speed_of(*fastest, of_rows) / speed_of(*best, of_rows) - 1;
  why += best == fastest ? "."
                         : str("; ", fastest->replicas, " were ", percent(ahead),
                               " faster, which is within noise, and fewer replicas need less memory.");
  return {best->replicas, why + remarks(measured, of_rows, spread)};
}

std::string table_of(const std::vector<ReplicaMeasurement>& measured) {
  const bool of_rows = by_rows(measured);
  const auto one = std::ranges::find(measured, 1, &ReplicaMeasurement::replicas);
  const bool has_one = one != measured.end() && is_measured(*one);
  std::ostringstream out;
  const auto add = [&](const auto& replicas, const auto& threads, const std::string& milliseconds,
                       const std::string& rows, const std::string& over) {
    out << std::setw(8) << replicas << std::setw(14) << threads << std::setw(13) << milliseconds << std::setw(17)
        << rows << std::setw(18) << over << '\n';
  };
  add("replicas", "threads each", "ms per step", "rows per second", "over one replica");
  for (const auto& each : measured) {
    if (!is_measured(each)) {
      out << std::setw(8) << each.replicas << "  not measured: " << each.not_measured << '\n';
      continue;
    }
    add(each.replicas, each.threads, fixed(1e3 * seconds_of(each), 2),
        each.rows > 0 ? fixed(static_cast<double>(each.rows) / seconds_of(each), 0) : "-",
        has_one ? fixed(speed_of(each, of_rows) / speed_of(*one, of_rows), 2) : "-");
  }
  return out.str();
}

}  // namespace lockstep
