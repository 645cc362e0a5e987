#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/socket.h"

namespace lockstep::app {

enum class Verdict { Ok, Warning, Problem };

/// One line of `lockstep doctor`.
struct Finding {
  Verdict verdict = Verdict::Ok;
  std::string text;
  std::string advice = {};  ///< the remedy, unless all is well
};

std::string to_string(const Finding& finding);

/// "2 problems, 1 warning"
std::string summary(const std::vector<Finding>& findings);

/// 1 if there is a problem, otherwise 0.
int exit_code(const std::vector<Finding>& findings);

Finding problem_of(const Error& error);

Finding judge_peer(const std::string& entry, const Reach& reach);

struct Limits {
  std::uint64_t open_files = 0;
  std::uint64_t memory = 0;                        ///< available, in bytes
  std::optional<std::uint64_t> memory_limit = {};  ///< limit of the control group
  int usable_cores = 1, all_cores = 1;
};
std::vector<Finding> judge_limits(const Limits& limits, int workers);

/// `built_with`: the version Lockstep was compiled for. Either is empty if unknown.
Finding judge_torch(const std::string& folder, const std::string& version, const std::string& built_with);

/// `time` is this machine's. Certificates and logs of several machines need clocks that agree.
Finding judge_clock(const std::string& time, bool synchronised, bool several_machines);

Finding judge_loopback(double bytes_per_second);

/// Prints what works and what does not on this machine for the cluster in `tf_config_file` ("-": standard input; empty:
/// the environment). Returns the exit code.
int doctor(const std::string& tf_config_file);

}  // namespace lockstep::app
