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
  Descriptor output[2];  ///< its standard output and error; non-blocking
  Descriptor input;      ///< its standard input, if requested, otherwise it reads nothing
};

/// Starts `argv` as the leader of its own session with `environment` ("NAME=value") on top of ours. The kernel kills it
/// when this process dies. Must be called from the main thread, which is the "parent" of that rule. Throws UsageError
/// if it cannot be executed.
Process start_process(const std::vector<std::string>& argv, std::vector<std::string> environment, bool with_input);

/// Kills all descendants of this process, even if they left its session or lost their parent, and waits for them.
/// Requires `supervise`. False if one was still there at the deadline.
bool kill_descendants(const Deadline& deadline);

/// How many processes the kernel killed for lack of memory, as far as it reports them: only a rise is meaningful.
long out_of_memory_kills();
/// The number after `name` in a file of "name number" lines, possibly followed by a unit, or -1.
long counter(const std::string& text, const std::string& name);

/// The signals that a launcher passes on, and SIGCHLD. Ignored ones, as after `nohup`, are excluded.
sigset_t watched_signals();

/// Runs `keeper` in a separate process and passes signals on to it. Two processes, so that neither can be killed
/// without the other noticing and killing everything that was started: `keeper` gets a descriptor that ends with this
/// process. Must be called before there are threads. Returns in both processes, with the exit code.
int supervise(const std::function<int(int life_line)>& keeper);

}  // namespace lockstep::app
