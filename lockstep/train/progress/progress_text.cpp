#include "lockstep/train/progress/progress_text.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/train/formatted.h"

namespace lockstep::train {
namespace {

constexpr int kCells = 20, kFewestCells = 5;

std::string repeated(std::string_view text, int times) {
  std::string all;
  for (int k = 0; k < times; ++k) all += text;
  return all;
}

/// "  47/469", or "47/Unknown".
std::string count_text(const ProgressState& state) {
  if (!state.total) return str(state.current, "/Unknown");
  const std::string total = std::to_string(*state.total), current = std::to_string(state.current);
  return repeated(" ", static_cast<int>(total.size()) - static_cast<int>(current.size())) + current + "/" + total;
}

std::string bar_text(const ProgressState& state, int cells, const LineStyle& style) {
  const double share = state.total && *state.total > 0
                           ? std::min(1.0, static_cast<double>(state.current) / static_cast<double>(*state.total))
                           : 1.0;
  const int filled = static_cast<int>(share * cells);
  if (style.ascii) return repeated("=", filled) + repeated(".", cells - filled);
  if (!style.colours) return repeated("━", filled) + repeated("─", cells - filled);
  return "\x1b[32m" + repeated("━", filled) + "\x1b[0m\x1b[37m" + repeated("━", cells - filled) + "\x1b[0m";
}

/// " 2s 5ms/step": what is left while the epoch runs, and what it took when it is done.
std::string time_text(const ProgressState& state, bool is_last) {
  const double per_step = state.seconds / static_cast<double>(std::max<std::int64_t>(state.current, 1));
  const bool is_estimate = !is_last && state.total;
  const double shown = is_estimate ? per_step * static_cast<double>(*state.total - state.current) : state.seconds;
  return str(' ', duration_text(std::max(shown, 0.0)), ' ', step_time_text(per_step));
}

bool is_of_validation(const std::string& name) { return name.starts_with("val_"); }

std::vector<std::string> value_parts(const std::map<std::string, double>& values) {
  std::vector<std::string> parts;
  for (const bool validation : {false, true}) {
    for (const auto& [name, value] : values) {
      if (is_of_validation(name) == validation) parts.push_back(str(" - ", name, ": ", value_text(value)));
    }
  }
  return parts;
}

}  // namespace

std::string duration_text(double seconds) {
  const auto whole = static_cast<long long>(seconds);
  if (whole >= 3600) return formatted("%lld:%02lld:%02lld", whole / 3600, whole % 3600 / 60, whole % 60);
  if (whole >= 60) return formatted("%lld:%02lld", whole / 60, whole % 60);
  return formatted("%llds", whole);
}

std::string step_time_text(double seconds) {
  if (seconds >= 1) return formatted("%.0fs/step", seconds);
  if (seconds >= 1e-3) return formatted("%.0fms/step", seconds * 1e3);
  return formatted("%.0fus/step", seconds * 1e6);
}

std::string value_text(double value) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  return formatted(std::abs(value) < 1e-3 ? "%.4e" : "%.4f", value);
}

std::string values_text(const std::map<std::string, double>& values) {
  std::string text;
  for (const std::string& part : value_parts(values)) text += part;
  return text;
}

int columns_of(const std::string& text) {
  int columns = 0;
  for (std::size_t k = 0; k < text.size(); ++k) {
    if (text[k] == '\x1b') {
      while (k < text.size() && (text[k] < '@' || text[k] > '~' || text[k] == '[')) ++k;
    } else {
      columns += (static_cast<unsigned char>(text[k]) & 0xC0) != 0x80;  // not the rest of a UTF-8 character
    }
  }
  return columns;
}

std::string bar_line(const ProgressState& state, const LineStyle& style) {
  const std::string count = count_text(state), time = time_text(state, style.is_last);
  const std::vector<std::string> values = value_parts(state.values);
  int values_columns = 0;
  for (const std::string& part : values) values_columns += columns_of(part);
  const int limit = style.columns - 1;
  int for_bar = limit - columns_of(count) - columns_of(time) - values_columns - 1;
  const bool is_broken = style.is_last && for_bar < -1;
  if (is_broken) for_bar += values_columns;  // values that do not fit go to the next line
  const int cells = std::min(kCells, for_bar);
  std::string line = count;
  if (cells >= kFewestCells) line += str(' ', bar_text(state, cells, style));
  line += time;
  int columns = columns_of(line);
  for (const std::string& part : values) {
    if (columns + columns_of(part) > limit) {
      if (!style.is_last) break;
      line += '\n' + repeated(" ", columns_of(count));
      columns = columns_of(count);
    }
    line += part;
    columns += columns_of(part);
  }
  return line;
}

std::string plain_line(const ProgressState& state, bool is_last) {
  std::string line = str("Epoch ", state.epoch + 1, "/", state.epochs, ": ", state.current);
  if (state.total) {
    const double share =
        100.0 * static_cast<double>(state.current) / static_cast<double>(std::max<std::int64_t>(*state.total, 1));
    line += str("/", *state.total, " (", static_cast<int>(share), "%)");
  }
  return line + time_text(state, is_last) + values_text(state.values);
}

}  // namespace lockstep::train
