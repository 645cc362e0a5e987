#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {

using Strings = std::vector<std::string>;
using std::chrono::seconds;

// One run of the program, with what it printed.
class Launch {
 public:
  explicit Launch(const Strings& arguments, const Strings& variables = {}) {
    Strings words{LOCKSTEP_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv, environment;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    Strings all = variables;
    for (char** entry = environ; *entry; ++entry) all.emplace_back(*entry);
    for (auto& variable : all) environment.push_back(variable.data());
    environment.push_back(nullptr);
    const auto out = folder_ / "out", err = folder_ / "err";
    pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      dup2(open(out.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600), 1);
      dup2(open(err.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600), 2);
      execve(argv[0], argv.data(), environment.data());
      _exit(99);
    }
  }
  ~Launch() {
    if (pid > 0 && status_ < 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  // The exit code, 1000 + signal, or -1 if it still runs.
  int wait(seconds limit = seconds(20)) {
    for (const auto deadline = Deadline::after(limit); status_ < 0 && !deadline.expired(); poll(nullptr, 0, 5)) {
      int status = 0;
      if (waitpid(pid, &status, WNOHANG) == pid)
        status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    }
    return status_;
  }

  std::string out() const { return file_content(folder_ / "out"); }
  std::string err() const { return file_content(folder_ / "err"); }

  pid_t pid = -1;

 private:
  const TemporaryFolder folder_;
  int status_ = -1;
};

inline Strings run(int workers, const Strings& script, const Strings& options = {}) {
  Strings arguments{"run", "-n", std::to_string(workers)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.push_back(LOCKSTEP_TEST_WORKER);
  arguments.insert(arguments.end(), script.begin(), script.end());
  return arguments;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++found;
  return found;
}

// The processes that left a file in the folder, once there are `count` of them.
inline std::vector<pid_t> processes(const TemporaryFolder& folder, int count) {
  std::vector<pid_t> pids;
  for (const auto deadline = Deadline::after(seconds(20)); std::ssize(pids) < count; poll(nullptr, 0, 5)) {
    if (deadline.expired()) throw std::runtime_error("the workers do not start");
    pids.clear();
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      pids.push_back(std::stoi(entry.path().filename().string()));
  }
  return pids;
}

// Dead, or dead but not yet collected by whoever inherited it.
inline bool is_gone(pid_t pid) {
  const auto stat = file_content("/proc/" + std::to_string(pid) + "/stat");
  return stat.empty() || contains(stat, ") Z ");
}

inline bool are_gone(const std::vector<pid_t>& pids, seconds limit = seconds(2)) {
  for (const auto deadline = Deadline::after(limit); !deadline.expired(); poll(nullptr, 0, 5))
    if (std::ranges::all_of(pids, is_gone)) return true;
  return false;
}

inline const std::string kTerm = std::to_string(SIGTERM), kInt = std::to_string(SIGINT);

}  // namespace lockstep
