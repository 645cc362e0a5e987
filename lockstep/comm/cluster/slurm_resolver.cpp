#include "lockstep/comm/cluster/slurm_resolver.h"

#include <cstdlib>

#include "lockstep/comm/cluster/refusal.h"

namespace lockstep {
namespace {

constexpr const char* kUseSrun = "start the program with srun, which sets the variables of every task";

template <class E>
[[noreturn]] void refuse(std::string what, std::string help = kUseSrun) {
  throw E(errors::kSlurm, {.what = std::move(what), .help = std::move(help)});
}

std::string variable(const Environment& environment, const char* name) {
  if (auto value = environment(name)) return *value;
  refuse<FailedPrecondition>(str("the variable ", name, " is not set"));
}

int number_variable(const Environment& environment, const char* name) {
  const std::string text = variable(environment, name);
  const auto value = parse_whole_number(text);
  if (value && *value >= 0 && *value <= 1'000'000) return static_cast<int>(*value);
  refuse<InvalidArgument>(str(name, " must be a whole number from 0 to 1000000, got '", shown(text), "'"));
}

/// Hosts and their tasks in the order of Slurm's list, which is the order in which it numbers the tasks.
SlurmHosts hosts_of(const SlurmOptions& options, const Environment& environment) {
  SlurmHosts listed = options.tasks_of_hosts, hosts;
  if (listed.empty()) {
    const auto names = expand_hostlist(variable(environment, "SLURM_STEP_NODELIST"));
    const auto counts = options.tasks_per_node
                            ? std::vector<int>(names.size(), *options.tasks_per_node)
                            : expand_tasks_per_node(variable(environment, "SLURM_STEP_TASKS_PER_NODE"));
    // If one list is shorter, the number of tasks reveals it.
    for (std::size_t i = 0; i < std::min(names.size(), counts.size()); ++i) listed.emplace_back(names[i], counts[i]);
  }
  std::map<std::string, std::size_t> places;
  for (const auto& [host, tasks] : listed) {
    const auto [place, is_new] = places.emplace(host, hosts.size());
    if (is_new) hosts.emplace_back(host, tasks);
    hosts[place->second].second = tasks;
  }
  return hosts;
}

int visible_gpus(const Environment& environment) {
  const auto listed = environment("CUDA_VISIBLE_DEVICES");
  if (listed) return listed->empty() ? 0 : static_cast<int>(std::ranges::count(*listed, ',')) + 1;
  return environment("SLURM_GPUS_ON_NODE") ? number_variable(environment, "SLURM_GPUS_ON_NODE") : 0;
}

template <class Counts>
long long checked_sum(const Counts& counts) {
  long long sum = 0;
  for (const auto& [name, count] : counts) {
    if (count < 0)
      refuse<InvalidArgument>(str(shown(name), " must have >= 0 tasks, got ", count), "correct the options");
    sum += count;
  }
  return sum;
}

void check_gpus(int per_node, int per_task, int tasks) {
  if (per_node < 0 || per_task < 0) {
    refuse<InvalidArgument>(str("GPUs of a node and a task must be >= 0, got ", per_node, " and ", per_task),
                            "set gpus_per_task to the number of GPUs for each task, or to 0 to train on CPUs");
  }
  if (1LL * per_task * tasks > per_node) {
    refuse<FailedPrecondition>(str(counted(tasks, "task"), " with ", counted(per_task, "GPU"),
                                   " each need more than the ", counted(per_node, "GPU"), " of a node"),
                               "start fewer tasks on each node, or set gpus_per_task to a lower number");
  }
}

/// The host that Slurm reports for this task must match its number: others connect to that host.
void check_own_host(const Environment& environment, int rank, const std::string& host) {
  const auto actual = environment("SLURMD_NODENAME");
  if (!actual || *actual == host) return;
  refuse<FailedPrecondition>(
      str("task ", rank, " runs on host ", shown(*actual), ", but its place in the node list is ", host),
      "start the program with srun --distribution=block, which fills one host after the other");
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
  const SlurmHosts hosts = hosts_of(options, environment);
  const long long num_tasks = checked_sum(hosts), needed = checked_sum(jobs);
  if (num_tasks == 0) refuse<InvalidArgument>("the Slurm step has no tasks on any host");
  const int most_tasks = std::ranges::max(hosts, {}, &SlurmHosts::value_type::second).second;
  if (options.port_base < 1 || options.port_base + most_tasks - 1LL > 65'535) {
    refuse<InvalidArgument>(str("the ports of ", counted(most_tasks, "task"),
                                " must be from 1 to 65535, got port_base ", options.port_base),
                            "set port_base to a lower port");
  }
  const int gpus_per_node = options.gpus_per_node.value_or(visible_gpus(environment));
  SlurmPlan plan{.gpus_per_task = options.gpus_per_task.value_or(gpus_per_node / most_tasks)};
  check_gpus(gpus_per_node, plan.gpus_per_task, most_tasks);
  if (needed != num_tasks) {
    refuse<FailedPrecondition>(str("the jobs need ", counted(needed, "task"), ", but the Slurm step has ", num_tasks),
                               "start as many tasks with srun --ntasks as the jobs have together");
  }
  if (plan.gpus_per_task == 0 && gpus_per_node > 0 && !options.gpus_per_task) {
    refuse<InvalidArgument>(
        str("a node has ", counted(gpus_per_node, "GPU"), ", fewer than its ", counted(most_tasks, "task")),
        "start as many tasks on each node as it has GPUs, or set gpus_per_task = 0 to train on CPUs");
  }
  if (rank >= num_tasks) {
    refuse<InvalidArgument>(str("SLURM_PROCID must be less than the ", num_tasks, " tasks of the step, got ", rank));
  }

  std::map<std::string, std::vector<std::string>> cluster;
  for (const auto& [job, tasks] : jobs) cluster[job];
  auto job = jobs.begin();
  int task = 0;
  for (const auto& [host, tasks] : hosts) {
    for (int on_host = 0; on_host < tasks; ++on_host, ++task) {
      while (std::ssize(cluster[job->first]) == job->second) ++job;
      std::vector<std::string>& addresses = cluster[job->first];
      if (task == rank) {
        check_own_host(environment, rank, host);
        plan.task_type = job->first;
        plan.task_index = static_cast<int>(addresses.size());
        plan.first_gpu = on_host * plan.gpus_per_task;
      }
      addresses.push_back(str(host, ':', options.port_base + on_host));
    }
  }
  plan.cluster = ClusterSpec(cluster);
  return plan;
}

}  // namespace lockstep
