#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/descriptor.h"

namespace lockstep::app {

struct Process {
  pid_t pid = -1;
  Descriptor output[2];  ///< what it writes to standard output and error; not blocking
  Descriptor input;      ///< its standard input, if asked for, otherwise it reads nothing
};

/// Starts `argv` as the leader of a session of its own with `environment` ("NAME=value") on top of ours. The kernel kills
/// it when this process dies. Must be called from the main thread, which is the "parent" of that rule. Throws UsageError
/// if it cannot be executed.
Process start_process(const std::vector<std::string>& argv, std::vector<std::string> environment, bool with_input);

/// Kills all that descends from this process, also what has left its session or has lost its parent, and waits for it.
/// Needs `supervise`. False if something was still there at the deadline.
bool kill_descendants(const Deadline& deadline);

/// How many processes the kernel has killed for lack of memory, as far as it reports them: only a rise means something.
long out_of_memory_kills();
/// The number after `name` in a file of "name number" lines, which may have a unit behind them, or -1.
long counter(const std::string& text, const std::string& name);

/// The signals that a launcher passes on, and SIGCHLD. One that is ignored, as after `nohup`, is not among them.
sigset_t watched_signals();

/// Runs `keeper` in a process of its own and passes signals on to it. Two processes, so that neither can be killed without
/// the other seeing it and killing all that was started: `keeper` gets a descriptor that ends when this process is gone.
/// Must be called before there are threads. Returns in both processes, with the exit code.
int supervise(const std::function<int(int life_line)>& keeper);

}  // namespace lockstep::app
