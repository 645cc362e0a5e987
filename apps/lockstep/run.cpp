#include "apps/lockstep/run.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <map>

#include "apps/lockstep/plan.h"
#include "apps/lockstep/process.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/refusal.h"

namespace lockstep::app {
namespace {

using MembersOf = std::function<std::vector<Member>(int generation)>;

Member member_of(const RunRequest& request, const JobIdentity& job, const ClusterSpec& cluster, const std::string& type,
                 int index, const std::string& host = {}) {
  return {.label = type == "worker" ? str("worker ", index) : type,
          .argv = request.program,
          .environment = task_environment(job, cluster, type, index),
          .host = host,
          .ends_last = type == "evaluator"};
}

// Attempt after attempt, in the process that owns the workers.
int keep(const RunRequest& request, const MembersOf& members_of, int life_line) {
  const auto signals = watched_signals();
  const Events events{signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK), life_line,
                      request.key_on_stdin ? STDIN_FILENO : -1};
  Console console;
  for (int attempt = 0, restarts = 0, port_retries = 0;; ++attempt) {
    const auto members = members_of(request.generation + attempt);
    const auto result = watch(members, request.watch, events, console, attempt == 0);
    const auto next = next_step(result, request.restart, restarts, port_retries);
    if (const auto* cause = root_cause(result); cause && !result.is_explained) {
      const auto* const blamed = culprit(result, *cause);
      // Among several launchers, the one whose worker is the cause reports it; if there is none, the launcher of the
      // launchers.
      const bool one_of_many = request.key_on_stdin || request.host_index == "slurm";
      if (!one_of_many || blamed || !is_consequence(*cause)) console.add(1, describe(*cause, blamed));
    }
    if (next == Next::Finish) {
      // Until everything is printed. A reader may be slow, but not if the user has already stopped the job.
      if (result.stop_signal == 0) watch({}, request.watch, events, console, false);
      return exit_code(result);
    }
    if (next == Next::NewPorts) {
      ++port_retries;
      console.say("another program took a port that was free a moment ago; starting again with new ones");
      continue;
    }
    const auto delay = restart_delay(restarts++);
    console.say(str("restart ", restarts, " of ", request.restart.restarts, " in ", delay.count(), " s"));
    if (const int signal = pause_for(delay, events, console)) return signal == SIGINT ? kInterrupted : kStopped;
  }
}

int launch(const RunRequest& request, const MembersOf& members_of) {
  if (!request.watch.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(request.watch.log_dir, error);
    if (error) throw UsageError(str("cannot make the folder ", request.watch.log_dir, ": ", error.message()));
  }
  return supervise([&](int life_line) { return keep(request, members_of, life_line); });
}

int run_here(const RunRequest& request, JobIdentity job) {
  return launch(request, [&](int generation) {
    job.generation = generation;
    std::map<std::string, std::vector<std::string>> addresses;
    for (const int port : free_ports(request.workers + request.evaluator)) {
      const bool is_worker = std::ssize(addresses["worker"]) < request.workers;
      addresses[is_worker ? "worker" : "evaluator"].push_back(str("127.0.0.1:", port));
    }
    const ClusterSpec cluster(addresses);
    std::vector<Member> members;
    for (int worker = 0; worker < request.workers; ++worker)
      members.push_back(member_of(request, job, cluster, "worker", worker));
    if (request.evaluator) members.push_back(member_of(request, job, cluster, "evaluator", 0));
    return members;
  });
}

int run_as_host(const RunRequest& request, JobIdentity job, const std::vector<Host>& hosts,
                const std::vector<std::string>& addresses) {
  const auto text = request.host_index == "slurm" ? environment_variable("SLURM_NODEID") : request.host_index;
  const auto index = parse_whole_number(text).value_or(-1);
  if (index < 0 || index >= std::ssize(hosts))
    throw UsageError(str("--host-index must be 0 to ", hosts.size() - 1, ", got '", text, "'"));
  if (request.key_on_stdin) {
    job.key.clear();
    // Byte by byte: later input must stay unread, because its end is a signal.
    for (char c = 0; read(STDIN_FILENO, &c, 1) == 1 && c != '\n';) job.key += c;
  } else if (!key_is_set()) {
    throw UsageError("set LOCKSTEP_JOB_KEY: all hosts of a job need the same key");
  }
  return launch(request, [&](int generation) {
    job.generation = generation;
    const Host& host = hosts[static_cast<size_t>(index)];
    std::vector<Member> members;
    for (int worker = first_worker(hosts, index); worker < first_worker(hosts, index + 1); ++worker)
      members.push_back(member_of(request, job, {{"worker", addresses}}, "worker", worker, host.name));
    return members;
  });
}

// The options that the launchers of the single hosts need too.
std::vector<std::string> shared_options(const RunRequest& request, const std::string& run_id, int generation) {
  const auto grace = str(request.watch.grace.count()), failure_grace = str(request.watch.failure_grace.count());
  std::vector<std::string> options{"--run-id", run_id, "--generation",    std::to_string(generation),
                                   "--grace",  grace,  "--failure-grace", failure_grace};
  if (!request.watch.log_dir.empty()) options.insert(options.end(), {"--log-dir", request.watch.log_dir});
  return options;
}

int print_commands(const HostsJob& plan, const std::string& key) {
  const auto key_text = !environment_variable("LOCKSTEP_JOB_KEY_FILE").empty()
                            ? "LOCKSTEP_JOB_KEY_FILE=" + shell_quoted(environment_variable("LOCKSTEP_JOB_KEY_FILE"))
                            : "LOCKSTEP_JOB_KEY=" + (key.empty() ? environment_variable("LOCKSTEP_JOB_KEY") : key);
  std::cout << "# Run on each host, or let --ssh do it. The key lets workers join: keep it to yourself.\n";
  for (size_t i = 0; i < plan.hosts.size(); ++i)
    std::cout << "# on " << plan.hosts[i].name << "\n"
              << key_text << " " << shell_line(host_command(plan, std::to_string(i))) << "\n";
  return kOk;
}

// For the launcher of launchers, which lets them do their work first, and leaves the logs to them.
RunRequest of_launchers(RunRequest request) {
  const auto margin = request.watch.kill_after + Seconds(1);
  request.watch.grace += margin;
  request.watch.failure_grace += margin;
  request.watch.kill_after += margin;
  request.watch.log_dir.clear();
  return request;
}

int run_over_ssh(const RunRequest& request, HostsJob plan, const std::string& run_id) {
  const auto folder = std::filesystem::current_path().string();
  const auto key = random_hex(32);
  // ssh does not pass the environment on. The key is not among these: it is sent on standard input.
  for (const char* name : {"LOCKSTEP_LOG", "LOCKSTEP_ENGINE", "LOCKSTEP_FAILURE_DIR", "LOCKSTEP_TLS_AUTHORITY",
                           "LOCKSTEP_TLS_CERTIFICATE", "LOCKSTEP_TLS_KEY"}) {
    if (const auto value = environment_variable(name); !value.empty()) plan.settings.push_back(str(name, "=", value));
  }
  return launch(of_launchers(request), [&](int generation) {
    std::vector<Member> members;
    plan.options = shared_options(request, run_id, generation);
    for (int i = 0; i < std::ssize(plan.hosts); ++i)
      members.push_back({.label = "host " + plan.hosts[static_cast<size_t>(i)].name,
                         .argv = ssh_command(plan, i, folder),
                         .input = key + "\n",
                         .prefixed = false});
    return members;
  });
}

int run_in_slurm(const RunRequest& request, HostsJob plan, const JobIdentity& job) {
  const auto key = job.key.empty() ? std::vector<std::string>() : std::vector{"LOCKSTEP_JOB_KEY=" + job.key};
  return launch(of_launchers(request), [&](int generation) {
    plan.options = shared_options(request, job.run_id, generation);
    // srun needs a second SIGINT before it reacts.
    return std::vector{Member{
        .label = "srun", .argv = srun_command(plan), .environment = key, .stop_signal = SIGTERM, .prefixed = false}};
  });
}

// Jobs that share a node get different ports.
int slurm_port(const std::string& job_id) { return 10000 + static_cast<int>(std::hash<std::string>()(job_id) % 9000); }

}  // namespace

int run(RunRequest request) {
  if (request.program.empty()) throw UsageError("name the program to run, as in: lockstep run -n 4 ./train");
  if (request.program[0].starts_with("-")) throw UsageError(str("unknown option '", request.program[0], "'"));
  const int ways = (request.workers > 0) + !request.hosts.empty() + !request.hostfile.empty();
  const bool slurm = ways == 0 && !environment_variable("SLURM_JOB_ID").empty();
  if (ways > 1) throw UsageError("use only one of -n, -H and --hostfile");
  if (request.evaluator && request.workers == 0)
    throw UsageError("--evaluator needs -n: on several machines, start the evaluator by hand");
  if (request.ssh && request.hosts.empty() && request.hostfile.empty())
    throw UsageError("--ssh needs the machines: -H host:slots,host:slots or --hostfile");
  if (request.port != 0 && request.workers > 0)
    throw UsageError("--port is for several machines: the workers of -n get ports that are free");
  if (ways == 0 && !slurm) throw UsageError("choose where to run: -n 4 for this machine, or -H host:slots,host:slots");
  const JobIdentity job{key_is_set() ? "" : random_hex(32), request.run_id.empty() ? random_hex(8) : request.run_id};
  if (request.workers > 0) return run_here(request, job);

  const std::string hostfile = request.hostfile.empty() ? "" : file_text(request.hostfile);
  if (!request.hostfile.empty() && hostfile.empty())
    throw UsageError(str("cannot read the hostfile ", request.hostfile, ", or it is empty"));
  request.restart.port_retries = 0;
  HostsJob plan{.launcher = std::filesystem::read_symlink("/proc/self/exe"), .program = request.program};
  plan.hosts =
      slurm ? slurm_hosts(environment_variable("SLURM_JOB_NODELIST"), environment_variable("SLURM_TASKS_PER_NODE"))
      : request.hosts.empty() ? parse_hostfile(hostfile)
                              : parse_hosts(request.hosts);
  if (slurm) plan.first_port = slurm_port(environment_variable("SLURM_JOB_ID"));
  if (request.port != 0) plan.first_port = request.port;
  const auto addresses = worker_addresses(plan.hosts, plan.first_port);
  if (!request.host_index.empty()) return run_as_host(request, job, plan.hosts, addresses);
  plan.options = shared_options(request, job.run_id, request.generation);
  if (slurm) return run_in_slurm(request, plan, job);
  if (request.ssh) return run_over_ssh(request, plan, job.run_id);
  plan.options.insert(plan.options.end(), {"--restarts", std::to_string(request.restart.restarts)});
  return print_commands(plan, job.key);
}

}  // namespace lockstep::app
