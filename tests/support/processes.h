#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <ios>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/text.h"
#include "tests/support/temporary_folder.h"

// Tests with real processes: workers, members of a job, launchers. No test may leave one behind, nor any process
// started by one.
namespace lockstep {

using Strings = std::vector<std::string>;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// Seconds of the clock that all processes of a machine share.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The contents of /proc/PID/name; nothing if the process has ended, even while it is read.
inline std::string process_file(pid_t pid, const char* name) {
  try {
    return file_content(str("/proc/", pid, "/", name));
  } catch (const std::ios_base::failure&) {
    return {};
  }
}

/// Dead, or dead but not yet collected by its parent.
inline bool is_gone(pid_t pid) {
  const auto stat = process_file(pid, "stat");
  return stat.empty() || contains(stat, ") Z ");
}

/// Waits until none of them is left, at most until the limit.
inline bool are_gone(const std::vector<pid_t>& pids, milliseconds limit = seconds(2)) {
  for (const auto deadline = Deadline::after(limit); !std::all_of(pids.begin(), pids.end(), is_gone);) {
    if (deadline.expired()) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

/// Finds processes left behind by a test, by a variable that every process inherits from the one that started it.
class OrphanCheck : public testing::EmptyTestEventListener {
 public:
  static std::string variable() { return str("LOCKSTEP_TEST_OF=", ::getpid(), ";"); }

 private:
  static std::vector<pid_t> left() {
    std::vector<pid_t> pids;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      if (pid > 0 && contains(process_file(pid, "environ"), variable()) && !is_gone(pid)) pids.push_back(pid);
    }
    return pids;
  }

  void OnTestEnd(const testing::TestInfo&) override {
    std::vector<pid_t> pids = left();
    for (const auto deadline = Deadline::after(seconds(2)); !pids.empty() && !deadline.expired(); pids = left())
      ::poll(nullptr, 0, 5);
    for (const pid_t pid : pids) {
      std::string command = process_file(pid, "cmdline");
      std::replace(command.begin(), command.end(), '\0', ' ');
      ADD_FAILURE() << "the test leaves process " << pid << " behind: " << command;
      ::kill(pid, SIGKILL);
    }
  }
};
inline const auto* const orphan_check = [] {
  auto* const check = new OrphanCheck;
  testing::UnitTest::GetInstance()->listeners().Append(check);
  return check;
}();

struct ProcessOptions {
  bool input = false;          ///< `send_line` writes to its standard input; otherwise it has the test's
  bool streams_apart = false;  ///< standard error has a file of its own
  bool ends_by_itself = true;  ///< a process still running when the test is done with it is a failure
};

/// A running program; its output goes to a file. It is killed when the test dies.
class Process {
 public:
  Process(Strings words, Strings variables, const ProcessOptions& options = {}) : options_(options) {
    variables.push_back(OrphanCheck::variable());
    for (char** entry = environ; *entry; ++entry) variables.emplace_back(*entry);
    const auto argv = pointers(words), environment = pointers(variables);
    const auto out = folder_ / "out", err = folder_ / (options.streams_apart ? "err" : "out");
    int ends[2] = {-1, -1};
    if (options.input) {
      EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    }
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::setpgid(0, 0);
      for (const int signal : {SIGINT, SIGQUIT, SIGHUP})
        ::signal(signal, SIG_DFL);  // ignored if a shell runs tests with &
      if (options.input) ::dup2(ends[0], STDIN_FILENO);
      ::dup2(::open(out.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600), STDOUT_FILENO);
      ::dup2(::open(err.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600), STDERR_FILENO);
      ::execvpe(argv[0], argv.data(), environment.data());
      ::_exit(99);
    }
    if (options.input) ::close(ends[0]);
    input_ = ends[1];
  }
  ~Process() {
    const int status = wait(options_.ends_by_itself ? milliseconds(2000) : milliseconds(0));
    EXPECT_TRUE(status >= 0 || !options_.ends_by_itself) << "process " << pid_ << " does not end:\n" << output();
    EXPECT_FALSE(contains(output(), "Sanitizer")) << output();
    end();
    if (input_ >= 0) ::close(input_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  double started() const { return started_; }
  /// When this object noticed that it had ended; 0: not yet.
  double ended() const { return ended_; }
  void signal(int number) const { ::kill(pid_, number); }
  /// Kills it, if it still runs.
  void end() {
    if (is_running()) signal(SIGKILL);
    wait(seconds(10));
  }

  bool is_running() {
    int status = 0;
    if (status_ < 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
      ended_ = now();
    }
    return status_ < 0;
  }

  /// The exit code, 1000 + signal, or -1 if it is still running then.
  int wait(milliseconds limit = seconds(20)) {
    for (const auto deadline = Deadline::after(limit); is_running() && !deadline.expired();) ::poll(nullptr, 0, 5);
    return status_;
  }

  void send_line(const std::string& line) const {
    const std::string text = line + "\n";
    EXPECT_EQ(::write(input_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  std::string output() const { return file_content(folder_ / "out"); }
  std::string complained() const { return file_content(folder_ / "err"); }

  /// Waits until it has printed this; false if it does not, or has ended before.
  bool prints(const std::string& text, milliseconds limit = seconds(60)) {
    for (const auto deadline = Deadline::after(limit);;) {
      const bool was_running = is_running();
      if (contains(output(), text)) return true;
      if (!was_running || deadline.expired()) return false;
      ::poll(nullptr, 0, 2);
    }
  }

 private:
  static std::vector<char*> pointers(Strings& texts) {
    std::vector<char*> result;
    for (auto& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
  }

  const ProcessOptions options_;
  const TemporaryFolder folder_;
  pid_t pid_ = -1;
  const double started_ = now();
  double ended_ = 0;
  int status_ = -1;
  int input_ = -1;
};

/// Ports of 127.0.0.1 that were free a moment ago, below the ephemeral ports, which other tests use meanwhile.
inline Strings free_addresses(int count) {
  static std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<std::uint16_t> any(20000, 32767);
  Strings addresses;
  std::vector<int> sockets;
  while (std::ssize(addresses) < count) {
    sockets.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::uint16_t port = any(random);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (::bind(sockets.back(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
      addresses.push_back(str("127.0.0.1:", port));
  }
  for (const int socket : sockets) ::close(socket);
  return addresses;
}

inline std::string tf_config(const Strings& addresses, int worker) {
  std::string list;
  for (const auto& address : addresses) list += str(list.empty() ? "\"" : ", \"", address, "\"");
  return str("TF_CONFIG={\"cluster\": {\"worker\": [", list, "]}, \"task\": {\"type\": \"worker\", \"index\": ", worker,
             "}}");
}

/// The workers of a job, started without the launcher: each one's output and end are observed separately.
class Job {
 public:
  Job(int workers, const Strings& words, const Strings& variables = {}) : addresses(free_addresses(workers)) {
    for (int k = 0; k < workers; ++k) start(k, words, variables);
  }
  /// Workers are started one by one.
  explicit Job(Strings given) : addresses(std::move(given)) {}

  Process& start(int worker, const Strings& words, Strings variables = {}) {
    variables.push_back(tf_config(addresses, worker));
    workers_.push_back(std::make_unique<Process>(words, variables));
    return *workers_.back();
  }
  /// In the order in which they were started.
  Process& operator[](int k) { return *workers_[static_cast<std::size_t>(k)]; }
  int size() const { return static_cast<int>(workers_.size()); }
  /// Waits until all have ended, at most until the limit. Records when each of them did.
  void wait(milliseconds limit) {
    const auto is_running = [](const auto& worker) { return worker->is_running(); };
    for (const auto deadline = Deadline::after(limit); std::ranges::count_if(workers_, is_running) > 0;) {
      if (deadline.expired()) return;
      ::poll(nullptr, 0, 5);
    }
  }

  const Strings addresses;

 private:
  std::vector<std::unique_ptr<Process>> workers_;
};

}  // namespace lockstep
