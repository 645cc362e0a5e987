#include "lockstep/train/progress/progress_printer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string_view>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

constexpr double kRefresh = 0.05;     // seconds between two states of a bar
constexpr double kQuietSeconds = 30;  // without a line in a pipe
constexpr int kUsualColumns = 80;

std::int64_t tenth_of(const ProgressState& state) {
  return state.total && *state.total > 0 ? state.current * 10 / *state.total : 0;
}

}  // namespace

Screen standard_output() {
  const char* const term = std::getenv("TERM");
  const bool is_dumb = std::getenv("NO_COLOR") != nullptr || (term != nullptr && std::string_view(term) == "dumb");
  const auto columns = [] {
    if (::isatty(STDOUT_FILENO) == 0) return 0;
    winsize size{};
    const bool is_known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return is_known ? static_cast<int>(size.ws_col) : kUsualColumns;
  };
  const auto write = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  return {write, columns, !is_dumb && columns() > 0};
}

Screen screen_of(std::ostream& out) {
  return {[&out](const std::string& text) { out << text << std::flush; }, [] { return 0; }};
}

ProgressPrinter::ProgressPrinter(Verbose verbose, Screen screen) : verbose_(verbose), screen_(std::move(screen)) {
  if (verbose_ == Verbose::Auto) verbose_ = screen_.terminal_columns() > 0 ? Verbose::Bar : Verbose::Lines;
}

ProgressPrinter::~ProgressPrinter() { finish_line(); }

void ProgressPrinter::finish_line() {
  if (drawn_columns_ > 0) screen_.write("\n");
  drawn_columns_ = 0;
}

void ProgressPrinter::redraw(const std::string& line, int columns) {
  std::string text = "\r";
  // A terminal that has become narrower shows the old line in several rows.
  const int rows = drawn_columns_ > 0 && columns > 0 ? (drawn_columns_ - 1) / columns : 0;
  if (rows > 0) text += str("\x1b[", rows, "A\x1b[J");
  screen_.write(text + line + "\x1b[K");
  drawn_columns_ = columns_of(line);
}

void ProgressPrinter::epoch_begins(const ProgressState& state) {
  last_shown_ = state.seconds;
  last_tenth_ = tenth_of(state);
  if (verbose_ == Verbose::Bar) screen_.write(str("Epoch ", state.epoch + 1, "/", state.epochs, "\n"));
}

bool ProgressPrinter::is_due(const ProgressState& state) const {
  const double waited = state.seconds - last_shown_;
  if (verbose_ == Verbose::Bar) return drawn_columns_ == 0 || waited >= kRefresh;
  if (verbose_ == Verbose::Lines) {
    const bool is_end = state.total && state.current >= *state.total;  // epoch_ends has that line
    return !is_end && (tenth_of(state) > last_tenth_ || waited >= kQuietSeconds);
  }
  return false;
}

void ProgressPrinter::show(const ProgressState& state) {
  last_shown_ = state.seconds;
  last_tenth_ = tenth_of(state);
  if (verbose_ == Verbose::Lines) return screen_.write(plain_line(state, /*is_last=*/false) + "\n");
  if (verbose_ != Verbose::Bar) return;
  const int columns = screen_.terminal_columns() > 0 ? screen_.terminal_columns() : kUsualColumns;
  redraw(bar_line(state, {.columns = columns, .colours = screen_.colours}), columns);
}

void ProgressPrinter::epoch_ends(const ProgressState& state) {
  if (verbose_ == Verbose::Lines) return screen_.write(plain_line(state, /*is_last=*/true) + "\n");
  if (verbose_ != Verbose::Bar) return;
  const int columns = screen_.terminal_columns() > 0 ? screen_.terminal_columns() : kUsualColumns;
  redraw(bar_line(state, {.columns = columns, .is_last = true, .colours = screen_.colours}), columns);
  finish_line();
}

void ProgressPrinter::say(const std::string& line) {
  if (is_silent()) return;
  finish_line();
  screen_.write(line + "\n");
}

}  // namespace lockstep::train
