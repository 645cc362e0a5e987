#include "lockstep/base/tune_report.h"

#include <algorithm>
#include <locale>
#include <sstream>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep {
namespace {

/// Like `str`, whatever locale the program has set: the other side may have a different one.
template <class... Parts>
std::string plain(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return std::move(out).str();
}

constexpr std::size_t kFewestSteps = 5;

/// Those after the warm-up, or all but the first if the program has ended before, or that one.
std::vector<TunedStep> warm(const std::vector<TunedStep>& steps) {
  const std::size_t left_out = steps.size() > kWarmUpSteps ? kWarmUpSteps : std::min<std::size_t>(1, steps.size() / 2);
  return {steps.begin() + static_cast<std::ptrdiff_t>(left_out), steps.end()};
}

}  // namespace

std::string head_line(const TuneReport& report) {
  return plain("program ", report.replicas, ' ', report.threads, ' ', report.cores, ' ', report.program, '\n');
}

std::string step_line(const TunedStep& step) { return plain("step ", step.seconds, ' ', step.rows, '\n'); }

std::size_t read_report(std::string_view text, TuneReport& report) {
  const std::size_t size = text.rfind('\n') + 1;  // 0 without a line end
  std::istringstream lines{std::string(text.substr(0, size))};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    words.imbue(std::locale::classic());
    std::string kind;
    words >> kind;
    if (kind == "program") {
      words >> report.replicas >> report.threads >> report.cores >> std::ws;
      std::getline(words, report.program);
    } else if (TunedStep step; kind == "step" && words >> step.seconds >> step.rows) {
      report.steps.push_back(step);
    }
  }
  return size;
}

bool are_enough(const std::vector<TunedStep>& steps, double round_seconds) {
  if (steps.size() < kWarmUpSteps + kFewestSteps) return false;
  double seconds = 0;
  for (std::size_t i = kWarmUpSteps; i < steps.size(); ++i) seconds += steps[i].seconds;
  return seconds >= round_seconds;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

TunedStep median_step(const std::vector<TunedStep>& steps) {
  std::vector<double> seconds, rows;
  for (const TunedStep& step : warm(steps)) {
    seconds.push_back(step.seconds);
    rows.push_back(static_cast<double>(step.rows));
  }
  return {median(seconds), static_cast<std::int64_t>(median(rows))};
}

}  // namespace lockstep
