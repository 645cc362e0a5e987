#pragma once

#include <string_view>

namespace lockstep {

/// How many cores this thread may use: those that `taskset`, a batch system or a container leave it, at least 1.
/// std::thread::hardware_concurrency() counts all that the machine has.
int usable_cores();

/// As many of `cores` as the control group of this process lets it use.
int within_quota(int cores);

/// `allowed` cores under a control group's `cpu.max` ("max 100000", or "150000 100000" for one and a half cores).
int cores_under_quota(int allowed, std::string_view cpu_max);

}  // namespace lockstep
