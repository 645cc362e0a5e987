#include "apps/lockstep/supervise.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>

#include "apps/lockstep/outcome.h"
#include "apps/lockstep/process.h"

namespace lockstep::app {
namespace {

int wait_and_forward(pid_t keeper) {
  const auto signals = watched_signals();
  while (true) {
    int status = 0;
    if (waitpid(keeper, &status, WNOHANG) == keeper) {
      kill_descendants(Deadline::after(std::chrono::seconds(2)));
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      fprintf(stderr, "lockstep: the launcher was killed by %s; all workers were killed\n",
              signal_name(WTERMSIG(status)).c_str());
      return kPeerLost;
    }
    const int signal = sigwaitinfo(&signals, nullptr);
    if (signal > 0 && signal != SIGCHLD) kill(keeper, signal);
  }
}

}  // namespace

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

int supervise(const std::function<int(int)>& keeper) {
  // A parent may have set it to be ignored; then the exit status of workers would be lost.
  signal(SIGCHLD, SIG_DFL);
  const auto signals = watched_signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  adopt_orphans();
  Pipe ends = make_pipe();
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("cannot start another process: raise 'ulimit -u'");
  if (pid > 0) {
    ends.read.close();
    return wait_and_forward(pid);
  }
  // A session of its own: Ctrl-C reaches the first process only, which passes it on once.
  setsid();
  ends.write.close();
  adopt_orphans();
  signal(SIGPIPE, SIG_IGN);
  return keeper(ends.read.get());
}

}  // namespace lockstep::app
