#include "apps/lockstep/job.h"

#include <sys/random.h>

#include <fstream>
#include <random>
#include <stdexcept>

#include "lockstep/base/environment.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/socket.h"

namespace lockstep::app {
namespace {

constexpr int kLowestPort = 20000;

int first_served_port() {
  int first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  return first > kLowestPort + 1000 ? first : 0;
}

}  // namespace

std::string tf_config_of(const ClusterSpec& cluster, const std::string& type, int index) {
  return str(R"({"cluster":)", to_string(cluster), R"(,"task":{"type":")", type, R"(","index":)", index, "}}");
}

std::vector<std::string> task_environment(const JobIdentity& job, const ClusterSpec& cluster, const std::string& type,
                                          int index) {
  std::vector<std::string> variables{"TF_CONFIG=" + tf_config_of(cluster, type, index), "LOCKSTEP_RUN_ID=" + job.run_id,
                                     str("LOCKSTEP_GENERATION=", job.generation)};
  // An empty file name, because a file would be preferred to the key.
  if (!job.key.empty()) variables.insert(variables.end(), {"LOCKSTEP_JOB_KEY=" + job.key, "LOCKSTEP_JOB_KEY_FILE="});
  return variables;
}

bool key_is_set() {
  return !environment_variable("LOCKSTEP_JOB_KEY").empty() || !environment_variable("LOCKSTEP_JOB_KEY_FILE").empty();
}

std::string random_hex(int bytes) {
  std::string raw(static_cast<size_t>(bytes), '\0'), hex;
  if (getrandom(raw.data(), raw.size(), 0) != bytes) throw std::runtime_error("the system gives no random bytes");
  for (const char c : raw) {
    hex += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    hex += "0123456789abcdef"[c & 15];
  }
  return hex;
}

std::vector<int> free_ports(int count) {
  std::random_device random;
  const int limit = first_served_port();
  std::vector<Descriptor> holders;
  std::vector<int> ports;
  for (int tries = 0; std::ssize(ports) < count && tries < 100 * count; ++tries) {
    const bool choose = limit != 0 && tries < 50 * count;
    const int wanted = choose ? std::uniform_int_distribution(kLowestPort, limit - 1)(random) : 0;
    holders.push_back(listen_at({"127.0.0.1", static_cast<std::uint16_t>(wanted)}));
    if (holders.back()) ports.push_back(parse_address(own_name(holders.back().get())).port);
  }
  if (std::ssize(ports) < count) throw std::runtime_error(str("found only ", ports.size(), " free ports of ", count));
  return ports;
}

}  // namespace lockstep::app
