#include "lockstep/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace lockstep {

int cores_under_quota(int allowed, std::string_view cpu_max) {
  std::istringstream in{std::string(cpu_max)};
  double quota = 0, period = 0;
  if (!(in >> quota >> period) || !(quota > 0) || !(period > 0)) return allowed;
  return static_cast<int>(std::clamp(std::ceil(quota / period), 1.0, static_cast<double>(allowed)));
}

int usable_cores() {
  cpu_set_t mine;
  const int allowed = sched_getaffinity(0, sizeof mine, &mine) == 0
                          ? CPU_COUNT(&mine)
                          : static_cast<int>(std::thread::hardware_concurrency());
  return within_quota(std::max(1, allowed));
}

int within_quota(int cores) {
  std::string quota;
  std::getline(std::ifstream("/sys/fs/cgroup/cpu.max"), quota);
  return cores_under_quota(cores, quota);
}

std::string cpu_name() {
  std::ifstream lines("/proc/cpuinfo");
  std::string model;
  for (std::string line; std::getline(lines, line) && !line.empty();) {  // of the first processor
    const auto colon = line.find(": ");
    const std::string_view name = std::string_view(line).substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    // ARM has numbers where others have a name.
    if (name == "model name" || name == "CPU implementer" || name == "CPU variant" || name == "CPU part")
      model += (model.empty() ? "" : ", ") + line.substr(colon + 2);
  }
  return model;
}

}  // namespace lockstep
