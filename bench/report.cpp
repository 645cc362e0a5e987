#include "report.h"

#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "lockstep/version.h"

namespace lockstep::bench {
namespace {

constexpr int kNameWidth = 36;

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double position = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], position - static_cast<double>(below));
}

std::string number(double value) {
  const double size = std::abs(value);
  std::ostringstream text;
  text << std::fixed << std::setprecision(size < 10 ? 2 : size < 100 ? 1 : 0) << value;
  return text.str();
}

struct Scale {
  double divisor;
  const char* unit;
};

Scale scale_for(double microseconds) { return microseconds < 1000 ? Scale{1, " us"} : Scale{1000, " ms"}; }

std::string range(const Spread& spread, double divisor = 1) {
  return number(spread.low / divisor) + " .. " + number(spread.high / divisor);
}

std::string note(const std::string& counter, const Spread& value) {
  if (counter == "bytes_per_second") return number(value.median / 1e9) + " GB/s";
  return counter + " " + number(value.median) + " (" + range(value) + ")";
}

std::string machine_text(const benchmark::CPUInfo& cpu) {
  utsname system{};
  uname(&system);
  std::ostringstream text;
  text << system.machine << ", " << cpu.num_cpus << " cores at " << std::lround(cpu.cycles_per_second / 1e6) << " MHz";
  for (const auto& cache : cpu.caches) {
    if (cache.type != "Instruction") text << ", L" << cache.level << ' ' << cache.size / 1024 << " KB";
  }
  if (!cpu.load_avg.empty()) text << ", load " << number(cpu.load_avg[0]);
  return text.str();
}

/// The field of a spread for an aggregate of Google Benchmark.
double Spread::*field_of(const std::string& aggregate) {
  if (aggregate == "median") return &Spread::median;
  if (aggregate == "p25") return &Spread::low;
  if (aggregate == "p75") return &Spread::high;
  if (aggregate == "least") return &Spread::least;
  return nullptr;
}

}  // namespace

benchmark::internal::Benchmark* in_rounds(benchmark::internal::Benchmark* benchmark, int count) {
  return benchmark->Repetitions(count)
      ->ReportAggregatesOnly()
      ->ComputeStatistics("p25", [](const std::vector<double>& v) { return quantile(v, 0.25); })
      ->ComputeStatistics("p75", [](const std::vector<double>& v) { return quantile(v, 0.75); })
      ->ComputeStatistics("least", [](const std::vector<double>& v) { return quantile(v, 0); });
}

bool Report::ReportContext(const Context& context) {
  std::ostream& out = GetOutputStream();
  const std::time_t now = std::time(nullptr);
  out << "Lockstep " LOCKSTEP_VERSION ", LibTorch " TORCH_VERSION ", " << std::put_time(std::gmtime(&now), "%F") << '\n'
      << machine_text(context.cpu_info) << "\n\n"
      << std::left << std::setw(kNameWidth) << "benchmark" << std::right << std::setw(12) << "median" << std::setw(18)
      << "25 .. 75 %" << std::setw(10) << "least" << std::endl;
  return true;
}

void Report::ReportRuns(const std::vector<Run>& runs) {
  if (runs.empty()) return;
  const std::string& name = runs.front().run_name.function_name;
  Figures& figures = seen_[name];
  for (const Run& run : runs) {
    double Spread::*const field = field_of(run.aggregate_name);
    if (field == nullptr) continue;
    figures.microseconds.*field = run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit) * 1e6;
    for (const auto& [counter, value] : run.counters) figures.counters[counter].*field = value;
  }
  const Spread& time = figures.microseconds;
  const Scale scale = scale_for(time.median);
  std::ostream& out = GetOutputStream();
  out << std::left << std::setw(kNameWidth) << name << std::right << std::setw(12)
      << number(time.median / scale.divisor) + scale.unit << std::setw(18) << range(time, scale.divisor)
      << std::setw(10) << number(time.least / scale.divisor);
  for (const auto& [counter, value] : figures.counters) out << "   " << note(counter, value);
  out << std::endl;
}

void Report::Finalize() {
  std::ostream& out = GetOutputStream();
  int width = 0;
  for (const auto& goal : goals_) width = std::max(width, static_cast<int>(goal.what.size()) + 2);
  int measured = 0;
  int reached = 0;
  for (const auto& goal : goals_) {
    const auto found = seen_.find(goal.benchmark);
    if (found == seen_.end()) continue;  // excluded by a filter
    if (measured++ == 0) {
      out << '\n'
          << std::left << std::setw(width) << "goal (medians)" << std::right << std::setw(12) << "at most"
          << std::setw(12) << "reached" << std::setw(18) << "25 .. 75 %"
          << "   ok\n";
    }
    const Figures& figures = found->second;
    const Spread& value = goal.counter.empty() ? figures.microseconds : figures.counters.at(goal.counter);
    const bool ok = value.median <= goal.limit;
    reached += ok ? 1 : 0;
    out << std::left << std::setw(width) << goal.what << std::right << std::setw(12)
        << number(goal.limit) + " " + goal.unit << std::setw(12) << number(value.median) + " " + goal.unit
        << std::setw(18) << range(value) << "   " << (ok ? "yes" : "NO") << '\n';
  }
  if (measured == 0) return;
  out << reached << " of " << measured << " goals reached";
  const auto& cpu = benchmark::CPUInfo::Get();
  if (reached < measured && !cpu.load_avg.empty() && cpu.load_avg[0] > 0.5 * cpu.num_cpus) {
    out << "; other work was running (load " << number(cpu.load_avg[0]) << " on " << cpu.num_cpus
        << " cores), which delays replicas that meet: repeat on a quiet machine";
  }
  out << std::endl;
}

}  // namespace lockstep::bench
