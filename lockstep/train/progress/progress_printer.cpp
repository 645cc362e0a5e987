#include "lockstep/train/progress/progress_printer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <ostream>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/open_line.h"
#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

constexpr double kRefresh = 0.05;     // seconds between two states of a bar
constexpr double kLeastSeconds = 5;   // between two lines of an epoch in a pipe
constexpr double kQuietSeconds = 30;  // without a line in a pipe
constexpr int kUsualColumns = 80;

std::int64_t tenth_of(const ProgressState& state) {
  return state.total && *state.total > 0 ? state.current * 10 / *state.total : 0;
}

/// Whether the locale names an encoding other than UTF-8. Without any locale, as in containers, terminals show UTF-8.
bool is_ascii_locale() {
  std::string locale;
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (locale.empty()) locale = environment_variable(name);
  }
  for (char& letter : locale) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return !locale.empty() && locale.find("utf-8") == locale.npos && locale.find("utf8") == locale.npos;
}

}  // namespace

Screen standard_output() {
  const bool is_dumb = environment_variable("TERM") == "dumb";
  const auto columns = [is_dumb] {
    if (is_dumb || ::isatty(STDOUT_FILENO) == 0) return 0;
    winsize size{};
    const bool is_known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return is_known ? static_cast<int>(size.ws_col) : kUsualColumns;
  };
  const auto write = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  return {write, columns, environment_variable("NO_COLOR").empty() && columns() > 0, is_ascii_locale()};
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
  lockstep::detail::set_line_is_open(false);
}

int ProgressPrinter::columns() const {
  const int columns = screen_.terminal_columns();
  return columns > 0 ? columns : kUsualColumns;
}

/// Moves to the beginning of the open line, which takes several rows of a terminal that has become narrower.
std::string ProgressPrinter::to_line_start() const {
  const int rows = drawn_columns_ > 0 ? (drawn_columns_ - 1) / columns() : 0;
  return rows > 0 ? str("\r\x1b[", rows, "A\x1b[J") : "\r";
}

void ProgressPrinter::redraw(const ProgressState& state, bool is_last) {
  const LineStyle style{.columns = columns(), .is_last = is_last, .colours = screen_.colours, .ascii = screen_.ascii};
  const std::string line = bar_line(state, style);
  std::string text = to_line_start();
  for (const char letter : line) text += letter == '\n' ? "\x1b[K\n" : std::string(1, letter);
  screen_.write(text + "\x1b[K");
  drawn_columns_ = columns_of(line);
  lockstep::detail::set_line_is_open(screen_.terminal_columns() > 0);
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
    const bool is_tenth = tenth_of(state) > last_tenth_ && waited >= kLeastSeconds;
    return !is_end && (is_tenth || waited >= kQuietSeconds);
  }
  return false;
}

void ProgressPrinter::show(const ProgressState& state) {
  last_shown_ = state.seconds;
  last_tenth_ = tenth_of(state);
  if (verbose_ == Verbose::Lines) return screen_.write(plain_line(state, /*is_last=*/false) + "\n");
  if (verbose_ == Verbose::Bar) redraw(state, /*is_last=*/false);
}

void ProgressPrinter::epoch_ends(const ProgressState& state) {
  if (verbose_ == Verbose::Lines) return screen_.write(plain_line(state, /*is_last=*/true) + "\n");
  if (verbose_ != Verbose::Bar) return;
  redraw(state, /*is_last=*/true);
  finish_line();
}

void ProgressPrinter::say(const std::string& line) {
  if (is_silent()) return;
  // The bar is drawn again below.
  const std::string erased = drawn_columns_ > 0 ? to_line_start() + "\x1b[K" : "";
  drawn_columns_ = 0;
  lockstep::detail::set_line_is_open(false);
  screen_.write(erased + line + "\n");
}

}  // namespace lockstep::train
