#include "apps/lockstep/output.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/text.h"

namespace lockstep::app {

constexpr size_t kTailLines = 12;
constexpr size_t kTailWidth = 400;

std::vector<std::string> LineSplitter::feed(std::string_view bytes) {
  std::vector<std::string> lines;
  for (const char c : bytes) {
    if (c == '\n' || rest_.size() == kLongest) {
      tail_.push_back(rest_.substr(0, kTailWidth));
      if (tail_.size() > kTailLines) tail_.pop_front();
      lines.push_back(std::exchange(rest_, {}));
    }
    if (c != '\n') rest_ += c;
  }
  return lines;
}

std::string Console::prefix(int stream, int member, const std::string& label) {
  if (!isatty(STDOUT_FILENO + stream) || !environment_variable("NO_COLOR").empty()) return str("[", label, "] ");
  // Cyan, yellow, green, magenta, blue: red is left to errors.
  constexpr int kColours[] = {36, 33, 32, 35, 34};
  return str("\x1b[", kColours[member % 5], "m[", label, "]\x1b[0m ");
}

void Console::add(int stream, std::string text) {
  if (text.empty() || (broken_ && stream == 0)) return;
  waiting_bytes_ += text.size();
  queue_.push_back({stream, std::move(text)});
  write_some();
}

void Console::say(std::string_view line) { add(1, str("lockstep: ", line, "\n")); }

int Console::waiting_for() const { return queue_.empty() ? -1 : STDOUT_FILENO + queue_.front().stream; }

void Console::write_some() {
  while (!queue_.empty()) {
    auto& piece = queue_.front();
    pollfd ready{waiting_for(), POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0) return;
    // A pipe that polls writable accepts PIPE_BUF bytes without blocking, and no more for certain.
    const auto count = write(ready.fd, piece.text.data(), std::min<size_t>(piece.text.size(), PIPE_BUF));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count < 0 && errno == EPIPE && piece.stream == 0) broken_ = true;
    const auto done = count < 0 ? piece.text.size() : static_cast<size_t>(count);
    waiting_bytes_ -= done;
    piece.text.erase(0, done);
    if (piece.text.empty()) queue_.pop_front();
  }
}

}  // namespace lockstep::app
