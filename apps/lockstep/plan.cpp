#include "apps/lockstep/plan.h"

#include <iomanip>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "lockstep/base/environment.h"
#include "lockstep/base/random_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/refusal.h"
#include "lockstep/comm/cluster/slurm_resolver.h"
#include "lockstep/comm/socket.h"

namespace lockstep::app {
namespace {

int parse_count(std::string_view text, std::string_view whole) {
  const auto count = parse_whole_number(text);
  if (!count || *count < 1 || *count > 65535)
    throw UsageError(str("'", whole, "' must end with a number of slots >= 1, got '", text, "'"));
  return static_cast<int>(*count);
}

Host parse_host(std::string_view text) {
  const auto bracket = text.rfind(']');
  const auto colon = text.rfind(':');
  const bool counted = colon != text.npos && (bracket == text.npos || colon > bracket);
  Host host{std::string(text.substr(0, counted ? colon : text.npos))};
  if (host.name.empty()) throw UsageError(str("'", text, "' names no host: write host:slots"));
  // ssh would read it as an option.
  if (host.name.front() == '-') throw UsageError(str("'", host.name, "' is not a host name"));
  if (host.name.find('@') != host.name.npos)
    throw UsageError(str("'", host.name, "' names a user: put that into ~/.ssh/config"));
  if (host.name.front() != '[' && host.name.find(':') != host.name.npos)
    throw UsageError(str("'", text, "' is ambiguous: write an IPv6 address as [", host.name, "]:slots"));
  if (counted) host.slots = parse_count(text.substr(colon + 1), text);
  return host;
}

std::vector<Host> checked(std::vector<Host> hosts) {
  if (hosts.empty()) throw UsageError("the list of hosts is empty: write host:slots,host:slots");
  std::set<std::string> names;
  for (const auto& host : hosts) {
    if (!names.insert(host.name).second)
      throw UsageError(str("host '", host.name, "' is listed twice: add its slots up in one entry"));
  }
  return hosts;
}

}  // namespace

std::vector<Host> parse_hosts(std::string_view list) {
  std::vector<Host> hosts;
  std::istringstream in{std::string(list)};
  for (std::string entry; std::getline(in, entry, ',');) hosts.push_back(parse_host(entry));
  return checked(std::move(hosts));
}

std::vector<Host> parse_hostfile(std::string_view text) {
  std::vector<Host> hosts;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, slots, extra;
    if (!(words >> name)) continue;
    Host host = parse_host(name);
    if (words >> slots) {
      if (!slots.starts_with("slots=") || words >> extra)
        throw UsageError(str("hostfile line '", line, "' must be 'host', 'host:2' or 'host slots=2'"));
      host.slots = parse_count(std::string_view(slots).substr(6), line);
    }
    hosts.push_back(std::move(host));
  }
  return checked(std::move(hosts));
}

std::vector<Host> slurm_hosts(std::string_view nodes, std::string_view tasks_per_node) {
  if (nodes.empty())
    throw UsageError(
        "SLURM_JOB_ID is set, but SLURM_JOB_NODELIST is not: start it with salloc or sbatch, or choose where to run with -n "
        "or -H");
  const auto names = expand_hostlist(nodes);
  const auto tasks = tasks_per_node.empty() ? std::vector<int>(names.size(), 1) : expand_tasks_per_node(tasks_per_node);
  if (tasks.size() != names.size())
    throw UsageError(str("SLURM_TASKS_PER_NODE='", tasks_per_node, "' describes ", counted(std::ssize(tasks), "node"),
                         ", but the allocation has ", names.size()));
  std::vector<Host> hosts;
  for (size_t i = 0; i < names.size(); ++i) hosts.push_back({names[i], tasks[i]});
  return checked(std::move(hosts));
}

std::string to_string(const std::vector<Host>& hosts) {
  std::string list;
  for (const auto& host : hosts) list += str(list.empty() ? "" : ",", host.name, ":", host.slots);
  return list;
}

int first_worker(const std::vector<Host>& hosts, std::ptrdiff_t host) {
  return std::accumulate(hosts.begin(), hosts.begin() + host, 0, [](int sum, const Host& h) { return sum + h.slots; });
}

std::vector<std::string> worker_addresses(const std::vector<Host>& hosts, int first_port) {
  std::vector<std::string> addresses;
  for (const auto& host : hosts) {
    if (first_port < 1 || first_port + host.slots - 1 > 65535)
      throw UsageError(str("ports ", first_port, " to ", first_port + host.slots - 1, " for host '", host.name,
                           "' must lie within 1..65535: choose another --port"));
    for (int slot = 0; slot < host.slots; ++slot) addresses.push_back(str(host.name, ":", first_port + slot));
  }
  return addresses;
}

std::string shell_quoted(const std::string& word) {
  const std::string_view harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(harmless) == word.npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) line += str(line.empty() ? "" : " ", shell_quoted(word));
  return line;
}

std::vector<std::string> host_command(const HostsJob& job, const std::string& index) {
  std::vector<std::string> words{job.launcher,   "run", "-H",     to_string(job.hosts),
                                 "--host-index", index, "--port", std::to_string(job.first_port)};
  words.insert(words.end(), job.options.begin(), job.options.end());
  words.insert(words.end(), job.program.begin(), job.program.end());
  return words;
}

std::vector<std::string> ssh_command(HostsJob job, int host, const std::string& folder) {
  job.options.push_back("--key-on-stdin");
  std::string name = job.hosts[static_cast<size_t>(host)].name;
  if (name.front() == '[') name = name.substr(1, name.size() - 2);
  std::vector<std::string> words = host_command(job, std::to_string(host));
  if (!job.settings.empty()) {
    words.insert(words.begin(), job.settings.begin(), job.settings.end());
    words.insert(words.begin(), "env");  // the other side's shell need not be a POSIX one
  }
  return {"ssh", "-o", "BatchMode=yes", "-T", name, str("cd ", shell_quoted(folder), " && exec ", shell_line(words))};
}

std::vector<std::string> srun_command(const HostsJob& job) {
  std::vector<std::string> words{"srun", str("--nodes=", job.hosts.size()), "--ntasks-per-node=1",
                                 "--kill-on-bad-exit=1"};
  const auto command = host_command(job, "slurm");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::string tf_config_of(const ClusterSpec& cluster, const std::string& type, int index) {
  return str(R"({"cluster":)", to_string(cluster), R"(,"task":{"type":")", type, R"(","index":)", index, "}}");
}

std::vector<std::string> task_environment(const JobIdentity& job, const ClusterSpec& cluster, const std::string& type,
                                          int index) {
  std::vector<std::string> variables{"TF_CONFIG=" + tf_config_of(cluster, type, index), "LOCKSTEP_RUN_ID=" + job.run_id,
                                     str("LOCKSTEP_GENERATION=", job.generation)};
  // An empty file name, because a file would take precedence over the key.
  if (!job.key.empty()) variables.insert(variables.end(), {"LOCKSTEP_JOB_KEY=" + job.key, "LOCKSTEP_JOB_KEY_FILE="});
  return variables;
}

bool key_is_set() {
  return !environment_variable("LOCKSTEP_JOB_KEY").empty() || !environment_variable("LOCKSTEP_JOB_KEY_FILE").empty();
}

std::string random_hex(int bytes) {
  std::string hex;
  for (const unsigned char c : random_bytes(static_cast<size_t>(bytes)))
    hex += str(std::hex, std::setfill('0'), std::setw(2), int{c});
  return hex;
}

std::vector<int> free_ports(int count) {
  std::random_device random;
  std::uniform_int_distribution<std::uint16_t> any(20000, 32767);
  std::vector<Descriptor> holders;
  std::vector<int> ports;
  for (int tries = 0; std::ssize(ports) < count && tries < 100 * count; ++tries) {
    const std::uint16_t port = any(random);
    holders.push_back(listen_at({"127.0.0.1", port}));
    if (holders.back()) ports.push_back(port);
  }
  if (std::ssize(ports) < count) throw std::runtime_error(str("found only ", ports.size(), " free ports of ", count));
  return ports;
}

}  // namespace lockstep::app
