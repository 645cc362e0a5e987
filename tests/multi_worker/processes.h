#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/text.h"
#include "tests/support/temporary_folder.h"

// Workers as real processes, with or without the launcher.
namespace lockstep {

using Strings = std::vector<std::string>;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// Seconds of the clock that all processes of a machine share.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A running program; what it prints goes to a file. It is killed when this goes, or when the test dies.
class Process {
 public:
  Process(Strings words, const Strings& variables) {
    Strings all = variables;
    for (char** entry = environ; *entry; ++entry) all.emplace_back(*entry);
    std::vector<char*> argv, environment;
    for (auto& word : words) argv.push_back(word.data());
    for (auto& variable : all) environment.push_back(variable.data());
    argv.push_back(nullptr);
    environment.push_back(nullptr);
    const auto path = folder_ / "said";
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setpgid(0, 0);
    const int file = ::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::execve(argv[0], argv.data(), environment.data());
    ::_exit(99);
  }
  ~Process() {
    if (is_running()) signal(SIGKILL);
    wait(seconds(10));
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  bool is_running() {
    int status = 0;
    if (status_ < 0 && ::waitpid(pid_, &status, WNOHANG) == pid_)
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return status_ < 0;
  }

  /// The exit code, 1000 + signal, or -1 if it still runs then.
  int wait(milliseconds limit) {
    for (const auto deadline = Deadline::after(limit); is_running() && !deadline.expired();) ::poll(nullptr, 0, 5);
    return status_;
  }

  std::string said() const { return file_content(folder_ / "said"); }

  /// Waits until it has said this; false if it does not, or has ended before.
  bool says(const std::string& text, milliseconds limit = seconds(60)) {
    for (const auto deadline = Deadline::after(limit);;) {
      const bool was_running = is_running();
      if (contains(said(), text)) return true;
      if (!was_running || deadline.expired()) return false;
      ::poll(nullptr, 0, 2);
    }
  }

 private:
  const TemporaryFolder folder_;
  pid_t pid_ = -1;
  int status_ = -1;
};

/// Ports of 127.0.0.1 that were free a moment ago.
inline Strings free_addresses(int count) {
  Strings addresses;
  std::vector<int> sockets;
  for (int i = 0; i < count; ++i) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0)
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
    addresses.push_back(str("127.0.0.1:", ntohs(address.sin_port)));
    sockets.push_back(socket);
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

/// The workers of a job, started without the launcher: what each one sees, and how it ends, is its own.
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
  /// In the order of starts.
  Process& operator[](int k) { return *workers_[static_cast<std::size_t>(k)]; }
  int size() const { return static_cast<int>(workers_.size()); }

  const Strings addresses;

 private:
  std::vector<std::unique_ptr<Process>> workers_;
};

}  // namespace lockstep
