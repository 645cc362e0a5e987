#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

// How a line of progress reads. Pure functions: the clock and the terminal are the caller's.
namespace lockstep::train {

/// What a line of progress says.
struct ProgressState {
  int epoch = 0;  ///< from 0
  int epochs = 1;
  std::int64_t current = 0;                ///< steps taken in this epoch
  std::optional<std::int64_t> total = {};  ///< steps of the epoch, if known
  double seconds = 0;                      ///< since the epoch began
  std::map<std::string, double> values = {};
};

struct LineStyle {
  int columns = 80;      ///< of the terminal; the line stays shorter, so that it does not wrap
  bool is_last = false;  ///< of its epoch: elapsed time instead of the estimate, and no value is left out
  bool colours = false;
  bool ascii = false;  ///< draws the bar without characters that need UTF-8
};

std::string duration_text(double seconds);   ///< "2s", "1:05", "1:02:03"
std::string step_time_text(double seconds);  ///< "312us/step", "5ms/step", "2s/step"
std::string value_text(double value);        ///< "0.5432", "1.4321e-05"
/// " - accuracy: 0.5432 - loss: 1.4321": alphabetical, those of validation last.
std::string values_text(const std::map<std::string, double>& values);

/// "47/469 ━━━━━━━━━━━━━━━━━━━━ 2s 5ms/step - accuracy: 0.5432 - loss: 1.4321". What does not fit is left out: first the bar, then
/// the last values. The last line of an epoch keeps all of its values, in several lines if one is too short.
std::string bar_line(const ProgressState& state, const LineStyle& style);
/// The same as a line that can be understood alone: "Epoch 1/12: 47/469 (10%) 2s 5ms/step - accuracy: 0.5432 - loss: 1.4321".
std::string plain_line(const ProgressState& state, bool is_last);

/// Columns that a text takes on a terminal: control sequences take none, other characters one each.
int columns_of(const std::string& text);

}  // namespace lockstep::train
