#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// Programs on a pseudo-terminal, and a small emulator of a user's screen.
namespace lockstep {

/// Makes the terminal of this process `columns` wide while it runs. The emulator finds the request in the output, so it
/// changes between the same two writes.
inline void resize_terminal(int columns) {
  std::printf("\x1b[8;24;%dt", columns);
  std::fflush(stdout);
  const winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(::ioctl(STDOUT_FILENO, TIOCSWINSZ, &size), 0);  // the processes of the terminal get SIGWINCH
}

/// Runs `program` in a separate process with a terminal of this width; returns its output. The process ends with status
/// 0.
inline std::string output_in_terminal(int columns, const std::function<void()>& program) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  std::array<char, 64> name{};
  EXPECT_TRUE(terminal >= 0 && ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0 &&
              ::ptsname_r(terminal, name.data(), name.size()) == 0);
  const winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setsid();
    const int own = ::open(name.data(), O_RDWR);  // becomes the terminal of the new session
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(own, stream);
    program();
    std::fflush(stdout);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  std::string output;
  std::array<char, 4096> bytes{};
  pollfd ready{.fd = terminal, .events = POLLIN, .revents = 0};
  constexpr int kLimit = 60'000;  // milliseconds without output
  while (::poll(&ready, 1, kLimit) > 0) {
    const ssize_t count = ::read(terminal, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;  // EIO: the process has closed it
    output.append(bytes.data(), static_cast<std::size_t>(count));
  }
  ::kill(child, SIGKILL);  // if it is still running; otherwise harmless, because the output ended with it
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  return output;
}

/// A terminal that moves the ends of long lines to new rows when it becomes narrower, as most do today.
class TerminalEmulator {
 public:
  explicit TerminalEmulator(int columns) : columns_(columns) {}

  void show(std::string_view output) {
    for (std::size_t at = 0; at < output.size();) {
      const char letter = output[at];
      if (output.substr(at, 2) == "\x1b[") {
        const std::size_t end = output.find_first_not_of("0123456789;", at + 2);
        if (end == output.npos) break;
        control(std::string(output.substr(at + 2, end - at - 2)), output[end]);
        at = end + 1;
      } else if (letter == '\r' || letter == '\n') {
        letter == '\r' ? to_row_start() : row_down();
        ++at;
      } else {
        std::size_t size = 1;
        while (at + size < output.size() && (static_cast<unsigned char>(output[at + size]) & 0xC0) == 0x80) ++size;
        put(std::string(output.substr(at, size)));
        at += size;
      }
    }
  }

  /// Without trailing blanks, and without the empty line at the end.
  std::vector<std::string> lines() const {
    std::vector<std::string> texts;
    for (const Cells& line : lines_) {
      std::string text;
      for (const std::string& cell : line) text += cell;
      texts.push_back(text.substr(0, text.find_last_not_of(' ') + 1));
    }
    if (texts.back().empty()) texts.pop_back();
    return texts;
  }
  /// Lines that were wider than the terminal when they were written.
  const std::vector<std::string>& too_wide() const { return too_wide_; }
  /// Unknown control sequences.
  const std::vector<std::string>& unknown() const { return unknown_; }
  /// How often a cell was overwritten.
  int redrawn() const { return redrawn_; }

 private:
  using Cells = std::vector<std::string>;

  Cells& line() { return lines_[line_]; }
  std::size_t width() const { return static_cast<std::size_t>(columns_); }
  std::size_t row_start() const { return (is_full_ ? at_ - 1 : at_) / width() * width(); }

  void put(const std::string& cell) {
    if (is_full_) {
      std::string text;
      for (const std::string& each : line()) text += each;
      too_wide_.push_back(text + cell);
    }
    if (at_ < line().size() && line()[at_] != " ") ++redrawn_;
    if (line().size() <= at_) line().resize(at_ + 1, " ");
    line()[at_++] = cell;
    is_full_ = at_ % width() == 0;
  }
  void to_row_start() {
    at_ = row_start();
    is_full_ = false;
  }
  void row_down() {
    const std::size_t start = row_start(), column = std::min(at_ - start, width() - 1);
    is_full_ = false;
    if (start + width() < line().size()) {
      at_ = start + width() + column;
      return;
    }
    if (++line_ == lines_.size()) lines_.emplace_back();
    at_ = column;
  }
  void row_up() {
    const std::size_t start = row_start(), column = std::min(at_ - start, width() - 1);
    is_full_ = false;
    if (start > 0) {
      at_ = start - width() + column;
    } else if (line_ > 0) {
      --line_;
      at_ = (line().empty() ? 0 : (line().size() - 1) / width() * width()) + column;
    }
  }
  void control(const std::string& numbers, char kind) {
    if (kind == 'm') return;
    if (kind == 'A') {
      for (int k = 0; k < std::max(1, std::atoi(numbers.c_str())); ++k) row_up();
    } else if (kind == 'J' && numbers.empty()) {
      line().resize(std::min(at_, line().size()));
      lines_.resize(line_ + 1);
    } else if (kind == 'K' && numbers.empty()) {
      const std::size_t end = row_start() + width();
      if (line().size() <= end) return line().resize(std::min(at_, line().size()));
      for (std::size_t k = at_; k < end; ++k) line()[k] = " ";
    } else if (kind == 't' && numbers.rfind("8;24;", 0) == 0) {
      columns_ = std::atoi(numbers.c_str() + 5);
      is_full_ = at_ > 0 && at_ % width() == 0;
    } else {
      unknown_.push_back(numbers + kind);
    }
  }

  int columns_;
  std::vector<Cells> lines_{1};
  std::size_t line_ = 0, at_ = 0;
  bool is_full_ = false;  ///< the last column of a row has just been written
  std::vector<std::string> too_wide_, unknown_;
  int redrawn_ = 0;
};

}  // namespace lockstep
