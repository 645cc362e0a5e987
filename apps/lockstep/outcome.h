#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::app {

using Seconds = std::chrono::duration<double>;

/// Exit codes of the command line.
enum ExitCode : int {
  kOk = 0,
  kProgramError = 1,
  kUsage = 2,
  kPeerLost = 3,
  kData = 4,
  kCheckpoint = 5,
  kInterrupted = 130,
  kStopped = 143
};

/// How one process of an attempt ended; in the order in which they ended.
struct Ending {
  int member = 0;
  std::string name = {};  ///< "worker 2"
  std::string host = {};  ///< its machine, if the job has several
  int pid = 0;
  int exit_code = 0;   ///< when `signal` is 0
  int signal = 0;      ///< the signal that ended it
  bool by_us = false;  ///< after the launcher asked it to stop
  bool out_of_memory = false;
  bool never_joined = false;      ///< it has ended, and others still wait for it to join
  Seconds after{};                ///< since its start
  std::vector<std::string> tail;  ///< its last lines

  bool failed() const { return signal != 0 || exit_code != 0 || never_joined; }
};

struct Attempt {
  std::vector<Ending> endings;
  int stop_signal = 0;        ///< the signal by which the user stopped the job
  bool is_explained = false;  ///< the launcher of a host printed the cause
};

/// The workers missing at the start according to a line printed by another: {1, 2} for "lockstep: worker 0: waiting for
/// worker 1 (a:2): connection refused, worker 2 (b:2): ...; here: worker 0".
std::vector<int> awaited_workers(const std::string& line);

/// The last lines worth showing: from the last error block on, otherwise all.
std::vector<std::string> telling_lines(const std::vector<std::string>& tail);

/// The number of the last error block ("error[L104]: ..."), or 0.
int error_number(const std::vector<std::string>& tail);

/// The ending that made the attempt fail, or null. A worker that only reports another's failure, or that the launcher
/// stopped, is the cause only if there is no other.
const Ending* root_cause(const Attempt& attempt);

/// Whether it only reports another worker's failure.
bool is_consequence(const Ending& ending);

/// The worker to blame if the cause is only such a report: one that was frozen, or ended well but too early. Or null.
const Ending* culprit(const Attempt& attempt, const Ending& cause);

/// A worker's exit code is passed on. Death by a signal is 3 (a worker was lost) if it came from outside and 1 if the
/// program crashed; a frozen or stuck worker is lost too, however the others ended. A job stopped by SIGTERM or SIGHUP
/// gives 143, by SIGINT 130, unless all workers ended well or one failed.
int exit_code(const Attempt& attempt);

/// "SIGKILL"
std::string signal_name(int signal);

/// "exited with code 1", "was killed by SIGKILL because memory ran out".
std::string how_it_ended(const Ending& ending);

/// The block that is printed once for a failed attempt.
std::string describe(const Ending& cause, const Ending* culprit = nullptr);

enum class Next { Finish, Restart, NewPorts };

struct RestartPolicy {
  int restarts = 0;
  int port_retries = 3;
};

/// The reaction to an attempt. Usage errors would only repeat, and a stopped job stays stopped. A port taken by another
/// process between choosing and binding it costs no restart.
Next next_step(const Attempt& attempt, const RestartPolicy& policy, int restarts_done, int port_retries_done);

/// 1, 2, 4, ... seconds, but at most a minute.
Seconds restart_delay(int restarts_done);

}  // namespace lockstep::app
