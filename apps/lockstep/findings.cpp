#include "apps/lockstep/findings.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/comm/cluster/tf_config.h"

namespace lockstep::app {
namespace {

std::string gigabytes(double bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << bytes / 1e9 << " GB";
  return out.str();
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

ClusterReport report_cluster(const std::string& text) {
  ClusterReport report;
  try {
    report.cluster = tf_config::cluster(text);
    if (report.cluster.empty()) {
      report.finding = {Verdict::Warning, "TF_CONFIG describes no cluster: programs train on this machine alone",
                        R"(write {"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {...}})"};
      return report;
    }
    report.task = {tf_config::task_type(text), tf_config::task_index(text)};
    // A TF_CONFIG without a task is checked as if it were the first one's.
    const auto* const first = report.cluster.has_job("worker") ? "worker" : "chief";
    describe_cluster(report.cluster, {report.task.type.value_or(first), report.task.index.value_or(0)});
    const auto workers = worker_count(report.cluster, report.task.type.value_or("worker"));
    report.finding.text = str("TF_CONFIG describes ", counted(workers, "worker"));
    if (report.task.type && report.task.index) {
      report.finding.text += str("; this is ", *report.task.type, " ", *report.task.index);
    } else {
      report.finding.verdict = Verdict::Warning;
      report.finding.text += ", but not which of them this is";
      report.finding.advice = R"(add "task": {"type": "worker", "index": 0}, with another index for each worker)";
    }
  } catch (const Error& error) {
    report.finding = {Verdict::Problem, error.text().what, error.text().help};
    if (!error.text().where.empty()) report.finding.text += " (" + error.text().where + ")";
  }
  return report;
}

Finding judge_own_port(const std::string& entry, int error) {
  const auto port = entry.substr(entry.rfind(':') + 1);
  switch (error) {
    case 0: return {Verdict::Ok, entry + " is free here"};
    case EADDRINUSE:
      return {Verdict::Problem, entry + " is in use",
              str("run 'ss -ltnp sport = :", port, "' to see by whom, or choose another port")};
    case EADDRNOTAVAIL:
      return {Verdict::Problem, entry + " is not an address of this machine",
              "check the task index in TF_CONFIG, and which address the name stands for ('getent ahosts NAME')"};
    case EACCES: return {Verdict::Problem, entry + " needs root", "choose a port above 1023"};
    default: return {Verdict::Problem, str(entry, " cannot be used: ", strerror(error)), "choose another address"};
  }
}

Finding judge_peer(const std::string& entry, int error) {
  switch (error) {
    case 0: return {Verdict::Ok, entry + " answers"};
    case ECONNREFUSED: return {Verdict::Ok, entry + " is reachable, but no worker listens there yet"};
    case ETIMEDOUT:
      return {Verdict::Problem, entry + " does not answer",
              "is the machine up, and does its firewall let this port through?"};
    default:
      return {Verdict::Problem, str(entry, " is not reachable: ", strerror(error)), "check the network and its routes"};
  }
}

std::vector<Finding> judge_limits(const Limits& limits, int workers) {
  std::vector<Finding> findings;
  // A connection to every other worker for data, one for coordination, files, and room for the program itself.
  const auto files_needed = static_cast<std::uint64_t>(256 + 4 * workers);
  const auto files = str(limits.open_files, " open files allowed");
  if (limits.open_files >= files_needed)
    findings.push_back({Verdict::Ok, files});
  else
    findings.push_back({Verdict::Warning, str(files, ", ", files_needed, " may be needed"), "run 'ulimit -n 65536'"});

  const auto memory = std::min(limits.memory, limits.memory_limit.value_or(limits.memory));
  auto text = gigabytes(static_cast<double>(memory)) + " of memory available";
  if (limits.memory_limit && *limits.memory_limit <= limits.memory) text += " (limit of the control group)";
  if (memory >= 1'000'000'000)
    findings.push_back({Verdict::Ok, text});
  else
    findings.push_back({Verdict::Warning, text, "end other programs, or use fewer workers on this machine"});

  text = str(limits.usable_cores, " of ", counted(limits.all_cores, "core"), " usable");
  if (2 * limits.usable_cores > limits.all_cores)
    findings.push_back({Verdict::Ok, text});
  else
    findings.push_back({Verdict::Warning, text, "taskset, the batch system or a control group holds back the others"});
  return findings;
}

Finding judge_torch(const std::string& folder, const std::string& version, const std::string& built_with) {
  const auto text = str("LibTorch ", version.empty() ? "of an unknown version" : version, " in ", folder);
  if (version.empty() || built_with.empty() || version == built_with) return {Verdict::Ok, text};
  return {Verdict::Warning, str(text, ", but Lockstep was built with ", built_with),
          "use that version on all machines: programs crash or give other bits with another one"};
}

Finding judge_clock(const std::string& time, bool synchronised, bool several_machines) {
  const auto text = str("the clock says ", time, " and is ", synchronised ? "" : "not ", "synchronised");
  if (synchronised || !several_machines) return {Verdict::Ok, text};
  return {Verdict::Warning, text, "compare it with the other machines, or start chrony or systemd-timesyncd"};
}

Finding judge_loopback(double bytes_per_second) {
  const auto text = gigabytes(bytes_per_second) + "/s between two sockets of this machine";
  if (bytes_per_second >= 0.5e9) return {Verdict::Ok, text};
  return {Verdict::Warning, text, "the machine is busy: training would be slow, too"};
}

}  // namespace lockstep::app
