#pragma once

#include <lockstep/base/device_name.h>

#include <stdexcept>
#include <string>
#include <vector>

/// The devices of an example: `--device gpu` puts its replicas on the first GPU, which they share. Otherwise they are
/// on CPUs.
inline std::vector<std::string> devices_of(int argc, char** argv, int replicas) {
  std::string kind = "cpu";
  for (int k = 1; k < argc; ++k)
    if (argv[k] == std::string("--device")) kind = k + 1 < argc ? argv[k + 1] : "";
  if (kind != "cpu" && kind != "gpu") throw std::invalid_argument("--device must be cpu or gpu, got '" + kind + "'");
  return kind == "gpu" ? lockstep::logical_gpus(replicas) : lockstep::cpus(replicas);
}
