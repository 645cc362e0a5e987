#pragma once

#include <signal.h>

#include <functional>

namespace lockstep::app {

/// The signals that a launcher passes on, and SIGCHLD. One that is ignored, as after `nohup`, is not among them.
sigset_t watched_signals();

/// Runs `keeper` in a process of its own and passes signals on to it. Two processes, so that neither can be killed without
/// the other seeing it and killing all that was started: `keeper` gets a descriptor that ends when this process is gone.
/// Must be called before there are threads. Returns in both processes, with the exit code.
int supervise(const std::function<int(int life_line)>& keeper);

}  // namespace lockstep::app
