#include "apps/lockstep/findings.h"

#include <errno.h>

#include <algorithm>
#include <iomanip>

#include "lockstep/base/text.h"

namespace lockstep::app {
namespace {

std::string gigabytes(double bytes) { return str(std::fixed, std::setprecision(1), bytes / 1e9, " GB"); }

Finding warning_unless(bool is_well, std::string text, std::string advice) {
  if (is_well) return {Verdict::Ok, std::move(text)};
  return {Verdict::Warning, std::move(text), std::move(advice)};
}

}  // namespace

std::string to_string(const Finding& finding) {
  constexpr const char* kVerdicts[] = {"ok       ", "warning  ", "problem  "};
  auto text = kVerdicts[static_cast<int>(finding.verdict)] + finding.text + "\n";
  if (!finding.advice.empty()) text += "         " + finding.advice + "\n";
  return text;
}

std::string summary(const std::vector<Finding>& findings) {
  const auto problems = std::ranges::count(findings, Verdict::Problem, &Finding::verdict);
  const auto warnings = std::ranges::count(findings, Verdict::Warning, &Finding::verdict);
  if (problems + warnings == 0) return "all is well";
  return counted(problems, "problem") + ", " + counted(warnings, "warning");
}

int exit_code(const std::vector<Finding>& findings) {
  return std::ranges::count(findings, Verdict::Problem, &Finding::verdict) != 0 ? 1 : 0;
}

Finding problem_of(const Error& error) {
  const ErrorText& text = error.text();
  const std::string& more = text.where.empty() ? text.seen : text.where;
  return {Verdict::Problem, more.empty() ? text.what : str(text.what, " (", more, ")"), text.help};
}

Finding judge_peer(const std::string& entry, const Reach& reach) {
  if (reach.answers()) return {Verdict::Ok, entry + " answers"};
  if (reach.error == ECONNREFUSED) return {Verdict::Ok, entry + " is reachable, but no worker listens there yet"};
  return {Verdict::Problem, str(entry, " cannot be reached: ", reach.why()),
          reach.target.empty() ? "write its IP address, or add it to /etc/hosts"
                               : "is the machine up, and do routes and firewalls let this port through?"};
}

std::vector<Finding> judge_limits(const Limits& limits, int workers) {
  // Two connections to every other worker for data, one for coordination, two for workers and strangers that have yet
  // to prove the job key, files, and room for the program itself.
  const auto files_needed = static_cast<std::uint64_t>(256 + 5 * workers);
  const bool enough_files = limits.open_files >= files_needed;
  const auto memory = std::min(limits.memory, limits.memory_limit.value_or(limits.memory));
  const bool is_limited = limits.memory_limit && *limits.memory_limit <= limits.memory;
  return {
      warning_unless(enough_files,
                     str(limits.open_files, " open files allowed",
                         enough_files ? "" : str(", ", files_needed, " may be needed by ", counted(workers, "worker"))),
                     "run 'ulimit -n 65536'"),
      warning_unless(memory >= 1'000'000'000,
                     str(gigabytes(static_cast<double>(memory)), " of memory available",
                         is_limited ? " (limit of the control group)" : ""),
                     "end other programs, or use fewer workers on this machine"),
      warning_unless(2 * limits.usable_cores > limits.all_cores,
                     str(limits.usable_cores, " of ", counted(limits.all_cores, "core"), " usable"),
                     "taskset, the batch system or a control group holds back the others")};
}

Finding judge_torch(const std::string& folder, const std::string& version, const std::string& built_with) {
  const auto text = str("LibTorch ", version.empty() ? "of an unknown version" : version, " in ", folder);
  if (version.empty() || built_with.empty() || version == built_with) return {Verdict::Ok, text};
  return {Verdict::Warning, str(text, ", but Lockstep was built with ", built_with),
          "use that version on all machines: programs crash or give other bits with a different one"};
}

Finding judge_clock(const std::string& time, bool synchronised, bool several_machines) {
  return warning_unless(synchronised || !several_machines,
                        str("the clock says ", time, " and is ", synchronised ? "" : "not ", "synchronised"),
                        "compare it with the other machines, or start chrony or systemd-timesyncd");
}

Finding judge_loopback(double bytes_per_second) {
  return warning_unless(bytes_per_second >= 0.5e9,
                        gigabytes(bytes_per_second) + "/s between two sockets of this machine",
                        "the machine is busy: training would be slow, too");
}

}  // namespace lockstep::app
