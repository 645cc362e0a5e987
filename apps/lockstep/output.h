#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::app {

/// Splits input into whole lines and remembers the last of them.
class LineSplitter {
 public:
  /// The complete lines of the pending text plus `bytes`, without their newlines. A line longer than `longest` is cut.
  std::vector<std::string> feed(std::string_view bytes);
  /// The last line, if it had no newline.
  std::vector<std::string> finish() { return feed(rest_.empty() ? "" : "\n"); }
  std::vector<std::string> tail() const { return {tail_.begin(), tail_.end()}; }

  static constexpr size_t kLongest = 64 * 1024;

 private:
  std::string rest_;
  std::deque<std::string> tail_;
};

/// Standard output and error of the launcher. Lines are queued while the reader is slow, so that signals are still
/// handled; one queue for both, so that a line is never torn by one of the other stream.
class Console {
 public:
  static constexpr int kStreams = 2;

  /// `stream` is 0 for standard output, 1 for standard error.
  void add(int stream, std::string text);
  /// Prints a line of the launcher itself on standard error.
  void say(std::string_view line);

  /// The descriptor that must become writable before `write_some` can continue, or -1.
  int waiting_for() const;
  void write_some();
  /// The queue is full: read no more from the workers.
  bool full() const { return waiting_bytes_ > 1 << 20; }
  /// The reader of standard output has closed it.
  bool broken() const { return broken_; }

  /// "[worker 2] ", coloured on a terminal.
  static std::string prefix(int stream, int member, const std::string& label);

 private:
  struct Piece {
    int stream;
    std::string text;
  };

  std::deque<Piece> queue_;
  size_t waiting_bytes_ = 0;
  bool broken_ = false;
};

}  // namespace lockstep::app
