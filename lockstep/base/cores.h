#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// How many cores this thread may use, at least 1: those allowed by `taskset`, a batch system or a container.
/// std::thread::hardware_concurrency() counts all cores of the machine.
LOCKSTEP_EXPORT int usable_cores();

/// Limits `cores` to the quota of this process's control group.
int within_quota(int cores);

/// `allowed` cores under a control group's `cpu.max` ("max 100000", or "150000 100000" for one and a half cores).
int cores_under_quota(int allowed, std::string_view cpu_max);

/// What kind of CPU this is, from /proc/cpuinfo: a name, or on Arm three numbers. Empty if that has neither.
LOCKSTEP_EXPORT std::string cpu_name();

}  // namespace lockstep
