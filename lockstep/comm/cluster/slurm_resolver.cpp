#include "lockstep/comm/cluster/slurm_resolver.h"

#include <algorithm>
#include <cstdlib>

#include "lockstep/comm/cluster/refusal.h"
#include "lockstep/comm/cluster/whole_number.h"

namespace lockstep {
namespace {

constexpr int kHighestPort = 65'535;

using Hosts = std::vector<std::pair<std::string, int>>;

[[noreturn]] void contradict(std::string what, std::string help) {
  throw FailedPrecondition(errors::kSlurm, {.what = std::move(what), .help = std::move(help)});
}

[[noreturn]] void refuse(std::string what, std::string help) {
  throw InvalidArgument(errors::kSlurm, {.what = std::move(what), .help = std::move(help)});
}

std::string variable(const Environment& environment, const char* name) {
  if (auto value = environment(name)) return *value;
  contradict(str("the variable ", name, " is not set"), "start the program with srun, which sets it for every task");
}

int number_variable(const Environment& environment, const char* name) {
  const std::string text = variable(environment, name);
  const auto value = parse_whole_number(text);
  if (!value || *value < 0 || *value > 1'000'000'000) {
    refuse(str(name, " must be a whole number >= 0, got '", shown(text), "'"), "start the program with srun");
  }
  return static_cast<int>(*value);
}

void add_host(Hosts& hosts, const std::string& host, int tasks) {
  const auto same = std::ranges::find(hosts, host, &Hosts::value_type::first);
  if (same == hosts.end()) {
    hosts.emplace_back(host, tasks);
  } else {
    same->second = tasks;
  }
}

/// Hosts in the order of Slurm's list, which is the order in which it numbers their tasks.
Hosts hosts_of(const SlurmOptions& options, const Environment& environment) {
  Hosts hosts;
  if (!options.tasks_of_hosts.empty()) {
    for (const auto& [host, tasks] : options.tasks_of_hosts) add_host(hosts, host, tasks);
    return hosts;
  }
  const auto names = expand_hostlist(variable(environment, "SLURM_STEP_NODELIST"));
  auto counts = options.tasks_per_node ? std::vector<int>(names.size(), *options.tasks_per_node)
                                       : expand_tasks_per_node(variable(environment, "SLURM_STEP_TASKS_PER_NODE"));
  // A list that is too short shows in the number of tasks.
  for (std::size_t i = 0; i < std::min(names.size(), counts.size()); ++i) add_host(hosts, names[i], counts[i]);
  return hosts;
}

int visible_gpus(const Environment& environment) {
  const auto listed = environment("CUDA_VISIBLE_DEVICES");
  if (listed) return listed->empty() ? 0 : static_cast<int>(std::ranges::count(*listed, ',')) + 1;
  return environment("SLURM_GPUS_ON_NODE") ? number_variable(environment, "SLURM_GPUS_ON_NODE") : 0;
}

int gpus_per_task(const SlurmOptions& options, int gpus_per_node, int most_tasks) {
  const int gpus = options.gpus_per_task.value_or(gpus_per_node / most_tasks);
  if (gpus < 0 || gpus_per_node < 0) {
    refuse(str("gpus_per_node and gpus_per_task must be >= 0, got ", gpus_per_node, " and ", gpus),
           "set gpus_per_task to the number of GPUs for each task, or to 0 to train on CPUs");
  }
  if (static_cast<long long>(gpus) * most_tasks > gpus_per_node) {
    contradict(str(counted(most_tasks, "task"), " with ", counted(gpus, "GPU"), " each need more than the ",
                   counted(gpus_per_node, "GPU"), " of a node"),
               "start fewer tasks on each node, or set gpus_per_task to a lower number");
  }
  return gpus;
}

/// The host that Slurm says this task runs on must be the one that its number gives: others connect to that.
void check_own_host(const Environment& environment, int rank, const std::string& host) {
  const auto actual = environment("SLURMD_NODENAME");
  if (!actual || *actual == host) return;
  contradict(str("task ", rank, " runs on host ", shown(*actual), ", but its place in the node list is ", host),
             "start the program with srun --distribution=block, which fills one host after the other");
}

std::string address_of(const std::string& host, const SlurmOptions& options, int task_on_host) {
  return to_string(Address{host, static_cast<std::uint16_t>(options.port_base + task_on_host)});
}

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

SlurmPlan plan_slurm(const SlurmOptions& options, const Environment& environment) {
  const int rank = number_variable(environment, "SLURM_PROCID");
  auto jobs = options.jobs;
  if (jobs.empty()) jobs["worker"] = number_variable(environment, "SLURM_STEP_NUM_TASKS");

  const Hosts hosts = hosts_of(options, environment);
  long long num_tasks = 0, requested = 0;
  int most_tasks = 0;
  for (const auto& [host, tasks] : hosts) {
    if (tasks < 0) refuse(str("host ", host, " must have >= 0 tasks, got ", tasks), "correct tasks_of_hosts");
    num_tasks += tasks;
    most_tasks = std::max(most_tasks, tasks);
  }
  for (const auto& [job, tasks] : jobs) {
    if (tasks < 0) refuse(str("job ", job, " must have >= 0 tasks, got ", tasks), "correct jobs");
    requested += tasks;
  }
  if (most_tasks == 0) refuse("the Slurm step has no tasks on any host", "start the program with srun");
  if (options.port_base < 1 || options.port_base + most_tasks - 1 > kHighestPort) {
    refuse(str("the ports of ", counted(most_tasks, "task"), " from port_base on must be from 1 to ", kHighestPort,
               ", got port_base ", options.port_base),
           "set port_base to a lower port");
  }

  SlurmPlan plan;
  const int gpus_per_node = options.gpus_per_node.value_or(visible_gpus(environment));
  plan.gpus_per_task = gpus_per_task(options, gpus_per_node, most_tasks);
  if (requested != num_tasks) {
    contradict(str("the jobs need ", counted(requested, "task"), ", but the Slurm step has ", num_tasks),
               "start as many tasks with srun --ntasks as the jobs have together");
  }
  if (plan.gpus_per_task == 0 && gpus_per_node > 0 && !options.gpus_per_task) {
    refuse(str("a node has ", counted(gpus_per_node, "GPU"), ", fewer than its ", counted(most_tasks, "task")),
           "start as many tasks on each node as it has GPUs, or set gpus_per_task = 0 to train on CPUs");
  }
  if (rank >= num_tasks) {
    refuse(str("SLURM_PROCID must be less than the ", num_tasks, " tasks of the step, got ", rank),
           "start the program with srun, which numbers its tasks from 0");
  }

  std::map<std::string, std::vector<std::string>> cluster;
  auto job = jobs.begin();
  int task = 0;
  for (const auto& [host, tasks] : hosts) {
    for (int on_host = 0; on_host < tasks; ++on_host, ++task) {
      while (std::ssize(cluster[job->first]) == job->second) ++job;
      if (task == rank) {
        check_own_host(environment, rank, host);
        plan.task_type = job->first;
        plan.task_index = static_cast<int>(cluster[job->first].size());
        plan.first_gpu = on_host * plan.gpus_per_task;
      }
      cluster[job->first].push_back(address_of(host, options, on_host));
    }
  }
  for (; job != jobs.end(); ++job) cluster[job->first];  // a job without tasks is listed, too
  plan.cluster = ClusterSpec(cluster);
  return plan;
}

}  // namespace lockstep
