#pragma once

#include <lockstep/base/device_name.h>

#include <string>
#include <vector>

/// Where an example trains: `--device gpu` puts its replicas on the first GPU, which they share. Otherwise they are on CPUs.
inline std::vector<std::string> devices_of(int argc, char** argv, int replicas) {
  const bool on_gpu = argc > 2 && std::string(argv[1]) == "--device" && std::string(argv[2]) == "gpu";
  return on_gpu ? lockstep::logical_gpus(replicas) : lockstep::cpus(replicas);
}
