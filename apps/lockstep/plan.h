#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/cluster/cluster_spec.h"

// The parts of a job: hosts, addresses, commands and its workers' environment.
namespace lockstep::app {

/// The command line was wrong: printed as one line, exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A machine and its number of workers.
struct Host {
  std::string name;
  int slots = 1;

  bool operator==(const Host&) const = default;
};

/// "a:2,b,[fd00::1]:4". A host without a number has one slot.
std::vector<Host> parse_hosts(std::string_view list);

/// One host per line, "a:2" or "a slots=2"; `#` starts a comment.
std::vector<Host> parse_hostfile(std::string_view text);

/// A Slurm allocation, from its SLURM_JOB_NODELIST ("n[1-3]") and SLURM_TASKS_PER_NODE ("2(x2),1").
std::vector<Host> slurm_hosts(std::string_view nodes, std::string_view tasks_per_node);

/// "a:2,b:1": the input of `parse_hosts`.
std::string to_string(const std::vector<Host>& hosts);

/// The address of every worker in order of its index. The slots of a host count ports up from `first_port`.
std::vector<std::string> worker_addresses(const std::vector<Host>& hosts, int first_port);

/// The index of a host's first worker.
int first_worker(const std::vector<Host>& hosts, std::ptrdiff_t host);

/// Quoted for a POSIX shell if necessary.
std::string shell_quoted(const std::string& word);
std::string shell_line(const std::vector<std::string>& words);

/// The settings shared by all hosts of a job.
struct HostsJob {
  std::vector<Host> hosts;
  int first_port = 2222;
  std::string launcher = "lockstep";  ///< this program's path on the hosts
  std::vector<std::string> options;   ///< passed on: --log-dir, --grace, ...
  std::vector<std::string> settings;  ///< "NAME=value", for the environment of all hosts
  std::vector<std::string> program;
};

/// The command of one host: `lockstep run -H ... --host-index 1 ... -- ./program args`. `index` may be "slurm".
std::vector<std::string> host_command(const HostsJob& job, const std::string& index);

/// The same through ssh: in the same folder there, with the job key on standard input, so that no process list shows
/// it. The workers stop when that input ends, and therefore when this side ends.
std::vector<std::string> ssh_command(HostsJob job, int host, const std::string& folder);

/// One launcher per node of the allocation. The job key is passed in the environment.
std::vector<std::string> srun_command(const HostsJob& job);

/// A worker's knowledge of its job, as environment variables.
struct JobIdentity {
  std::string key;     ///< LOCKSTEP_JOB_KEY: 32 random bytes in hex, which admits a worker; empty: as already set
  std::string run_id;  ///< LOCKSTEP_RUN_ID: the same for all attempts
  int generation = 0;  ///< LOCKSTEP_GENERATION: the attempt, which distinguishes workers left over from an earlier one
};

/// `{"cluster":{"worker":["host:port",...]},"task":{"index":2,"type":"worker"}}`
std::string tf_config_of(const ClusterSpec& cluster, const std::string& type, int index);

std::vector<std::string> task_environment(const JobIdentity& job, const ClusterSpec& cluster, const std::string& type,
                                          int index);

/// Whether the environment has a job key.
bool key_is_set();

std::string random_hex(int bytes);

/// Free ports of 127.0.0.1. They are reserved during the choice and free again on return, so another process may take
/// one before the worker does; they are below the range of Linux's ephemeral ports, to make that rare.
std::vector<int> free_ports(int count);

}  // namespace lockstep::app
