#include "lockstep/train/logs/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "lockstep/base/text.h"
#include "lockstep/train/formatted.h"
#include "lockstep/train/require_option.h"

namespace lockstep::train {
namespace {

constexpr int kWidth = 480, kPlotHeight = 220, kLeft = 62, kRight = 14, kTop = 34, kLegendLine = 18, kBottom = 34;
constexpr std::size_t kMostParts = 400;  // points beyond that are closer than pixels
// Colours that are told apart on white and on black, also by people who see few.
constexpr std::array kColours{"#3b82c4", "#e8852e", "#3a9d5d", "#d0505a", "#8f6fd0", "#a57449", "#d06fb1", "#8a8f98"};

struct Line {
  std::string label;
  const Curve* curve = nullptr;
};
using Charts = std::vector<std::pair<std::string, std::vector<Line>>>;  // by metric

bool is_validation(const std::string& name) { return name.find("val_") == 0 || name.find("epoch_val_") == 0; }

Charts charts_of(const std::vector<Curve>& curves) {
  const bool one_run = std::ranges::all_of(curves, [&](const Curve& curve) { return curve.run == curves.front().run; });
  Charts charts;
  for (const Curve& curve : curves) {
    const std::string metric = detail::metric_of(curve.name);
    auto chart = std::ranges::find(charts, metric, &Charts::value_type::first);
    if (chart == charts.end()) chart = charts.insert(charts.end(), {metric, {}});
    std::string label = one_run ? "" : curve.run;
    if (is_validation(curve.name)) label += label.empty() ? "validation" : " (validation)";
    chart->second.push_back({label.empty() ? "training" : label, &curve});
  }
  return charts;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (byte >= ' ') {
      out += c;
    }
  }
  return out;
}

std::string number_text(double value) { return formatted("%.4g", value); }
std::string pixel(double value) { return formatted("%.1f", value); }

/// Maps values to pixels.
struct Axis {
  double low = 0, high = 1, first_pixel = 0, last_pixel = 1;
  bool log_scale = false;

  double at(double value) const {
    const double low_end = scaled(low), high_end = scaled(high);
    return first_pixel + (scaled(value) - low_end) / (high_end - low_end) * (last_pixel - first_pixel);
  }
  double scaled(double value) const { return log_scale ? std::log10(value) : value; }
  /// Whether it can be drawn. Differences of the greatest numbers there are would be infinite.
  bool has(double value) const {
    constexpr double kGreatest = 1e300;
    return std::abs(value) <= kGreatest && (!log_scale || value > 0);
  }
};

/// Wide enough for all values, and never empty.
void fit(Axis& axis, const std::vector<Line>& lines, double CurvePoint::*member) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const Line& line : lines) {
    for (const CurvePoint& point : line.curve->points) {
      if (!axis.has(point.*member)) continue;
      low = std::min(low, point.*member);
      high = std::max(high, point.*member);
    }
  }
  if (low > high) low = high = 1;
  if (low == high && axis.log_scale) {
    low /= 2;
    high *= 2;
  } else if (low == high) {
    const double around = std::max(std::abs(low), 1.0) * 0.5;
    low -= around;
    high += around;
  }
  axis.low = low;
  axis.high = high;
}

std::string path_of(const std::vector<CurvePoint>& points, const Axis& x, const Axis& y) {
  std::string path;
  int length = 0;  // points since a value that cannot be drawn interrupted the line
  const auto end_line = [&] {
    if (length == 1) path += "h0";  // a point by itself is drawn as a dot
    length = 0;
  };
  for (const CurvePoint& point : points) {
    if (!x.has(point.x) || !y.has(point.y)) {
      end_line();
      continue;
    }
    path += str(length++ == 0 ? "M" : "L", pixel(x.at(point.x)), ' ', pixel(y.at(point.y)));
  }
  end_line();
  return path;
}

std::vector<double> marks_of(const Axis& axis) {
  if (!axis.log_scale) return detail::axis_marks(axis.low, axis.high);
  std::vector<double> marks;
  for (double power : detail::axis_marks(std::log10(axis.low), std::log10(axis.high)))
    marks.push_back(std::pow(10, power));
  return marks;
}

void append_axes(std::string& svg, const Axis& x, const Axis& y) {
  for (const double mark : marks_of(y)) {
    const std::string at = pixel(y.at(mark));
    svg += str("<path class=\"grid\" d=\"M", kLeft, ' ', at, 'H', kWidth - kRight, "\"/><text class=\"mark\" x=\"",
               kLeft - 6, "\" y=\"", at, "\" dy=\"4\" text-anchor=\"end\">", number_text(mark), "</text>\n");
  }
  for (const double mark : marks_of(x)) {
    svg += str("<text class=\"mark\" x=\"", pixel(x.at(mark)), "\" y=\"", pixel(y.first_pixel + 18),
               "\" text-anchor=\"middle\">", number_text(mark), "</text>\n");
  }
}

void append_chart(std::string& svg, const Charts::value_type& chart, const ChartOptions& options, int plot_top) {
  const auto& [metric, lines] = chart;
  Axis x{.first_pixel = kLeft, .last_pixel = kWidth - kRight, .log_scale = options.log_x};
  Axis y{.first_pixel = double(plot_top + kPlotHeight), .last_pixel = double(plot_top), .log_scale = options.log_scale};
  fit(x, lines, &CurvePoint::x);
  fit(y, lines, &CurvePoint::y);
  svg += str("<text class=\"metric\" x=\"", kLeft, "\" y=\"20\">", escaped(metric), "</text>\n");
  append_axes(svg, x, y);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string colour = kColours.at(i % kColours.size());
    const std::string dashes = i < kColours.size() ? "" : " stroke-dasharray=\"5 3\"";
    const auto& points = lines[i].curve->points;
    const auto append_line = [&](const std::vector<CurvePoint>& of, const char* kind) {
      svg += str("<path class=\"", kind, "\" stroke=\"", colour, "\"", dashes, " d=\"",
                 path_of(thinned(of, kMostParts), x, y), "\"/>\n");
    };
    if (options.smoothing > 0) append_line(points, "pale");
    append_line(options.smoothing > 0 ? smoothed(points, options.smoothing) : points, "line");
    const int legend = kTop + static_cast<int>(i) * kLegendLine;
    const auto last =
        std::find_if(points.rbegin(), points.rend(), [](const CurvePoint& p) { return std::isfinite(p.y); });
    svg += str("<path class=\"line\" stroke=\"", colour, "\"", dashes, " d=\"M", kLeft, ' ', legend,
               "h18\"/><text x=\"", kLeft + 24, "\" y=\"", legend + 4, "\">", escaped(lines[i].label),
               last == points.rend() ? "" : str(" · ", number_text(last->y)), "</text>\n");
  }
}

constexpr std::string_view kStyle =
    "<style>svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#24292f}.title{font-size:16px;font-weight:600}"
    ".metric{font-weight:600}.mark{fill:#6e7781;font-size:11px}.grid{stroke:#d8dee4;fill:none}"
    ".line,.pale{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}.pale{stroke-opacity:.25;stroke-width:1.2}"
    "@media (prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#e6edf3}.mark{fill:#8d96a0}.grid{stroke:#30363d}}"
    "</style>\n";

}  // namespace

namespace detail {

std::string metric_of(const std::string& name) {
  std::string metric = name;
  for (const char* prefix : {"epoch_", "val_"}) {
    if (metric.starts_with(prefix) && metric != prefix) metric.erase(0, std::string_view(prefix).size());
  }
  return metric;
}

std::vector<double> axis_marks(double low, double high) {
  constexpr double kMarks = 5;
  const double rough = (high - low) / kMarks;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {2.0, 5.0, 10.0}) {
    if (step < rough) step = power * factor;
  }
  std::vector<double> marks;
  constexpr double kRounding = 1e-9;
  for (double i = std::ceil(low / step - kRounding); i * step <= high + step * kRounding && marks.size() < 20; ++i)
    marks.push_back(i == 0 ? 0 : i * step);
  return marks;
}

}  // namespace detail

std::string svg_of(const std::vector<Curve>& curves, const ChartOptions& options) {
  detail::require_option(options.smoothing >= 0 && options.smoothing < 1, "a chart",
                         str("smoothing must be from 0 to 0.999, got ", options.smoothing),
                         "0 draws the values themselves, 0.9 a calm line");
  const Charts charts = charts_of(curves);
  std::size_t most_lines = 1;
  for (const auto& [metric, lines] : charts) most_lines = std::max(most_lines, lines.size());
  const int plot_top = kTop + static_cast<int>(most_lines) * kLegendLine;
  const int height = plot_top + kPlotHeight + kBottom, title = options.title.empty() ? 0 : 34;
  const int columns = charts.size() > 1 ? 2 : 1, rows = (static_cast<int>(charts.size()) + columns - 1) / columns;
  std::string svg = str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", columns * kWidth, ' ',
                        rows * height + title, "\" width=\"", columns * kWidth, "\">\n", kStyle);
  if (title > 0) svg += str("<text class=\"title\" x=\"", kLeft, "\" y=\"24\">", escaped(options.title), "</text>\n");
  for (std::size_t i = 0; i < charts.size(); ++i) {
    const int column = static_cast<int>(i) % columns, row = static_cast<int>(i) / columns;
    svg += str("<g transform=\"translate(", column * kWidth, ' ', row * height + title, ")\">\n");
    append_chart(svg, charts[i], options, plot_top);
    svg += "</g>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace lockstep::train
