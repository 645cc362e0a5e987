#include "apps/lockstep/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "apps/lockstep/outcome.h"
#include "apps/lockstep/plan.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/text.h"

namespace lockstep::app {
namespace {

// Closed on exec.
struct Pipe {
  Descriptor read, write;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(str("no pipe: ", strerror(errno), "; raise 'ulimit -n'"));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// Runs in the child. Returns only on failure.
void become(std::vector<std::string> argv, std::vector<std::string>& environment, const int (&streams)[3],
            pid_t launcher) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);
  for (int i = 0; i < 3; ++i) dup2(streams[i], i);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (auto& variable : environment) putenv(variable.data());
  std::vector<char*> words;
  for (auto& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  execvp(words[0], words.data());
}

// Only those still alive, not those waiting to be collected.
std::vector<pid_t> own_children() {
  std::vector<pid_t> result;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = atoi(entry.path().filename().c_str());
    const auto stat = pid > 0 ? file_text(str("/proc/", pid, "/stat")) : "";
    // The program's name, in parentheses before these, may contain anything.
    std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    char state = 'Z';
    pid_t parent = 0;
    if (fields >> state >> parent && state != 'Z' && parent == getpid()) result.push_back(pid);
  }
  return result;
}

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

Process start_process(const std::vector<std::string>& argv, std::vector<std::string> environment, bool with_input) {
  Pipe input = with_input ? make_pipe() : Pipe{Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)), Descriptor()};
  Pipe output = make_pipe(), error = make_pipe(), failure = make_pipe();
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    become(argv, environment, {input.read.get(), output.write.get(), error.write.get()}, launcher);
    const int reason = errno;
    [[maybe_unused]] const auto ignored = write(failure.write.get(), &reason, sizeof reason);
    _exit(127);
  }
  if (pid < 0) throw std::runtime_error(str("cannot start another process: ", strerror(errno), "; raise 'ulimit -u'"));
  failure.write.close();
  if (int reason = 0; read(failure.read.get(), &reason, sizeof reason) == sizeof reason) {
    waitpid(pid, nullptr, 0);
    const bool no_folder = reason == ENOENT && argv[0].find('/') == std::string::npos;
    throw UsageError(str("cannot run '", argv[0], "': ", strerror(reason),
                         no_folder ? str("; a program of this folder is written ./", argv[0]) : ""));
  }
  fcntl(output.read.get(), F_SETFL, O_NONBLOCK);
  fcntl(error.read.get(), F_SETFL, O_NONBLOCK);
  return {pid, {std::move(output.read), std::move(error.read)}, std::move(input.write)};
}

bool kill_descendants(const Deadline& deadline) {
  while (true) {
    pid_t collected = 0;
    while ((collected = waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    if (collected < 0 && errno == ECHILD) return true;
    if (deadline.expired()) return false;
    // Their children become ours, and are killed in the next round.
    for (const pid_t pid : own_children()) kill(pid, SIGKILL);
    poll(nullptr, 0, 5);
  }
}

long counter(const std::string& text, const std::string& name) {
  std::istringstream in(text);
  std::string word, unit;
  for (long value = 0; in >> word >> value; std::getline(in, unit)) {
    if (word == name) return value;
  }
  return -1;
}

long out_of_memory_kills() {
  std::istringstream groups(file_text("/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    const auto path = line.substr(std::min(line.size(), line.rfind(':') + 1));
    const bool unified = line.starts_with("0::");
    if (!unified && line.find(":memory:") == line.npos) continue;
    const auto file = unified ? str("/sys/fs/cgroup", path, "/memory.events")
                              : str("/sys/fs/cgroup/memory", path, "/memory.oom_control");
    if (const long kills = counter(file_text(file), "oom_kill"); kills >= 0) return kills;
  }
  return counter(file_text("/proc/vmstat"), "oom_kill");
}

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
  // A parent may have set it to be ignored, which would lose the exit status of workers.
  signal(SIGCHLD, SIG_DFL);
  const auto signals = watched_signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // affects both processes: for kill_descendants
  Pipe ends = make_pipe();
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("cannot start another process: raise 'ulimit -u'");
  if (pid > 0) {
    ends.read.close();
    return wait_and_forward(pid);
  }
  // A separate session: Ctrl-C reaches only the first process, which passes it on once.
  setsid();
  ends.write.close();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  signal(SIGPIPE, SIG_IGN);
  return keeper(ends.read.get());
}

}  // namespace lockstep::app
