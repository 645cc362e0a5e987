#pragma once

#include <string>
#include <vector>

#include "apps/lockstep/outcome.h"
#include "apps/lockstep/output.h"

namespace lockstep::app {

/// One process to start and to watch: a worker, or the launcher of another host.
struct Member {
  std::string label;  ///< "worker 2"
  std::vector<std::string> argv;
  std::vector<std::string> environment;
  std::string host = {};  ///< for messages, if the job has several
  std::string input;  ///< written to its standard input, which stays open; more input asks it to stop, as does its end
  int stop_signal = 0;     ///< sent instead of the user's signal, if not 0
  bool prefixed = true;    ///< its lines are prefixed with the label
  bool ends_last = false;  ///< has `grace` to end by itself once all others have ended well, and is stopped then
};

struct WatchOptions {
  Seconds grace{30};         ///< from the user's signal to SIGKILL; also for those that end last
  Seconds failure_grace{5};  ///< time for the other workers to discover a failure by themselves
  Seconds kill_after{2};     ///< from the launcher's own SIGTERM to SIGKILL
  std::string log_dir;       ///< one file per member, if not empty
};

/// The launcher's inputs while it watches; all of them are read with poll.
struct Events {
  int signals = -1;    ///< a signalfd
  int life_line = -1;  ///< ends when the process that started this job ends
  int input = -1;      ///< likewise, for a launcher that was started from another host, which can also ask it to stop
};

/// Starts the members, prints their output, passes signals on and returns when all of them and their descendants have
/// ended. `first_attempt` is false if logs are to be continued.
Attempt watch(const std::vector<Member>& members, const WatchOptions& options, const Events& events, Console& console,
              bool first_attempt);

/// Waits for `delay`. Returns the signal by which the user stopped the job meanwhile, otherwise 0.
int pause_for(Seconds delay, const Events& events, Console& console);

}  // namespace lockstep::app
