#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>

#include "lockstep/train/progress/progress_text.h"
#include "lockstep/train/verbose.h"

namespace lockstep::train {

/// Where lines go. `terminal_columns` returns 0 where it is not a terminal.
struct Screen {
  std::function<void(const std::string&)> write;
  std::function<int()> terminal_columns;
  bool colours = false;
};
/// Standard output, with colours on a terminal unless NO_COLOR is set or TERM is "dumb".
Screen standard_output();
/// A stream, which is not a terminal.
Screen screen_of(std::ostream& out);

/// Writes a training's progress. Only the chief has one.
class ProgressPrinter {
 public:
  ProgressPrinter(Verbose verbose, Screen screen);
  ~ProgressPrinter();
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  bool is_silent() const { return verbose_ == Verbose::Silent; }
  void epoch_begins(const ProgressState& state);
  /// Whether a line is due after this step. Its values are worth reading only then.
  bool is_due(const ProgressState& state) const;
  void show(const ProgressState& state);
  void epoch_ends(const ProgressState& state);
  /// A line of its own, below the progress.
  void say(const std::string& line);

 private:
  void redraw(const std::string& line, int columns);
  void finish_line();

  Verbose verbose_;
  Screen screen_;
  double last_shown_ = 0;        ///< seconds of the epoch
  std::int64_t last_tenth_ = 0;  ///< of the epoch, that had a line
  int drawn_columns_ = 0;        ///< of the line that is open
};

}  // namespace lockstep::train
