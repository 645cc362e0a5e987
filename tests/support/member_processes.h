#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/base/text.h"

extern char** environ;

namespace lockstep::coordination {

/// Ports of 127.0.0.1 that were free a moment ago.
inline std::vector<std::string> free_addresses(int count) {
  std::vector<std::string> addresses;
  std::vector<int> sockets;
  for (int i = 0; i < count; ++i) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
    addresses.push_back(str("127.0.0.1:", ntohs(address.sin_port)));
    sockets.push_back(socket);
  }
  for (const int socket : sockets) ::close(socket);
  return addresses;
}

inline std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += text.empty() ? part : "," + part;
  return text;
}

/// A running member_program, started by the command `through` if there is one. Ends it when it goes.
class Process {
 public:
  Process(int self, const std::vector<std::string>& addresses, const std::vector<std::string>& settings = {},
          const std::vector<std::string>& through = {}) {
    std::vector<std::string> words = through;
    words.insert(words.end(), {LOCKSTEP_MEMBER_PROGRAM, std::to_string(self), joined(addresses)});
    words.insert(words.end(), settings.begin(), settings.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int in[2];
    int out[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    EXPECT_EQ(::posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~Process() {
    ::close(in_);
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(out_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void tell(const std::string& line) {
    const std::string text = line + "\n";
    EXPECT_EQ(::write(in_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  /// The next line that begins with `start`; all lines are kept. Fails the test if it does not come.
  std::string await(const std::string& start, std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    for (;;) {
      for (; seen_ < lines_.size(); ++seen_) {
        if (lines_[seen_].rfind(start, 0) == 0) return lines_[seen_++];
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      pollfd ready{.fd = out_, .events = POLLIN, .revents = 0};
      if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0 || !read_more()) break;
    }
    ADD_FAILURE() << "no line '" << start << "...' from pid " << pid_ << "; all lines:\n" << all();
    return {};
  }

  /// Starts again from the first line.
  std::string await_any(const std::string& start, std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    seen_ = 0;
    return await(start, limit);
  }

  std::string ask(const std::string& line) {
    tell(line);
    return await_answer();
  }
  std::string await_answer() {
    for (;;) {
      const std::string line = await("");
      if (line.empty() || line.rfind("ok", 0) == 0 || line.rfind("error", 0) == 0) return line;
    }
  }

  void signal(int number) const { ::kill(pid_, number); }
  int pid() const { return pid_; }
  /// The number of a line of /proc/PID/status, "VmHWM" for instance.
  long status(const std::string& name) const {
    std::ifstream lines(str("/proc/", pid_, "/status"));
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(name + ":", 0) == 0) return std::stol(line.substr(name.size() + 1));
    }
    return -1;
  }
  /// All processor time it has used so far, in seconds.
  double cpu_seconds() const {
    std::ifstream stat(str("/proc/", pid_, "/stat"));
    std::string field;
    double user = 0, system = 0;
    std::getline(stat, field, ')');  // the name may hold anything
    for (int i = 0; i < 11; ++i) stat >> field;
    stat >> user >> system;
    return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }
  int wait_for_end() {
    int status = 0;
    while (read_more()) {
    }
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string all() const {
    std::string text;
    for (const std::string& line : lines_) text += "  " + line + "\n";
    return text;
  }

 private:
  bool read_more() {
    char buffer[4096];
    const ssize_t size = ::read(out_, buffer, sizeof buffer);
    if (size <= 0) return false;
    pending_.append(buffer, static_cast<std::size_t>(size));
    for (std::size_t end; (end = pending_.find('\n')) != std::string::npos; pending_.erase(0, end + 1)) {
      lines_.push_back(pending_.substr(0, end));
    }
    return true;
  }

  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string pending_;
  std::vector<std::string> lines_;
  std::size_t seen_ = 0;
};

}  // namespace lockstep::coordination
