#pragma once

#include <string>
#include <vector>

#include "apps/lockstep/outcome.h"
#include "apps/lockstep/watch.h"

namespace lockstep::app {

/// The arguments of `lockstep run`.
struct RunRequest {
  int workers = 0;         ///< -n
  std::string hosts;       ///< -H
  std::string hostfile;    ///< --hostfile
  std::string host_index;  ///< --host-index: which of the hosts this is; "slurm": SLURM_NODEID
  bool evaluator = false;
  bool ssh = false;
  bool key_on_stdin = false;  ///< the job key is the first line of standard input, whose end stops the job
  int port = 0;               ///< 0: the default
  int generation = 0;
  std::string run_id;
  RestartPolicy restart;
  WatchOptions watch;
  std::vector<std::string> program;
};

/// Returns the exit code. Throws UsageError.
int run(RunRequest request);

}  // namespace lockstep::app
