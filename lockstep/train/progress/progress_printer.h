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
  bool ascii = false;  ///< it may not show characters that need UTF-8
};
/// Standard output, with colours on a terminal unless NO_COLOR is set. If TERM is "dumb", it is not taken for a terminal, because it
/// cannot redraw a line. If the locale's encoding is known and not UTF-8, everything is written in ASCII.
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
  /// A line of its own, above the progress.
  void say(const std::string& line);

 private:
  int columns() const;
  std::string to_line_start() const;
  void redraw(const ProgressState& state, bool is_last);
  void finish_line();

  Verbose verbose_;
  Screen screen_;
  double last_shown_ = 0;        ///< seconds of the epoch
  std::int64_t last_tenth_ = 0;  ///< of the epoch, that had a line
  int drawn_columns_ = 0;        ///< of the line that is open
};

}  // namespace lockstep::train
