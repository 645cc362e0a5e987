#include "lockstep/train/logs/curves.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/train/logs/csv_line.h"
#include "lockstep/train/logs/event_reader.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Curves of one run by name, in the order in which they appear.
class Collector {
 public:
  explicit Collector(std::string run) : run_(std::move(run)) {}

  void add(const std::string& name, double x, double y) {
    const auto [at, is_new] = index_.try_emplace(name, curves_.size());
    if (is_new) curves_.push_back({.run = run_, .name = name});
    curves_[at->second].points.push_back({x, y});
  }
  void drop_from(double x) {
    for (Curve& curve : curves_) std::erase_if(curve.points, [x](const CurvePoint& point) { return point.x >= x; });
  }
  std::vector<Curve> take() { return std::move(curves_); }

 private:
  std::string run_;
  std::vector<Curve> curves_;
  std::map<std::string, std::size_t> index_;
};

std::optional<double> number_of(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw InvalidArgument(errors::kFile,
                        {.what = str(path, " is not a log of a training: ", why),
                         .help = "give a CSV file or JSON lines with a column of steps or epochs in front, an "
                                 "event file of TensorBoard, or a folder with some of them"});
}

void read_csv(const std::string& path, Collector& collector) {
  std::istringstream lines(file_text(path));
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> header = detail::csv_fields(line);
  if (header.size() < 2) refuse(path, "its first line does not name columns");
  while (std::getline(lines, line)) {
    const auto fields = detail::csv_fields(line);
    const auto x = number_of(fields[0]);
    if (!x) continue;
    for (std::size_t i = 1; i < std::min(fields.size(), header.size()); ++i) {
      if (const auto y = number_of(fields[i])) collector.add(header[i], *x, *y);
    }
  }
}

std::optional<double> json_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

void read_json_lines(const std::string& path, Collector& collector) {
  std::istringstream lines(file_text(path));
  std::string line;
  for (bool is_first = true; std::getline(lines, line); is_first = false) {
    const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const char* key = row.is_object() && row.contains("step") ? "step" : "epoch";
    if (!row.is_object() || !row.contains(key) || !row[key].is_number()) {
      if (is_first) refuse(path, "its first line has no \"epoch\" or \"step\"");
      continue;
    }
    for (const auto& [name, value] : row.items()) {
      const auto y = json_number(value);
      if (y && name != key) collector.add(name, row[key].get<double>(), *y);
    }
  }
}

void read_event_file(const std::string& path, Collector& collector) {
  const auto [events, damage] = detail::event::read_events(path);
  if (!damage.empty() && events.empty()) refuse(path, damage);
  if (!damage.empty()) log_warning(str("only the beginning of ", path, " can be read: ", damage));
  for (const auto& event : events) {
    if (event.starts_session) collector.drop_from(static_cast<double>(event.step));
    for (const auto& value : event.values) {
      if (value.kind == detail::event::Value::Kind::Scalar)
        collector.add(value.tag, static_cast<double>(event.step), value.scalar);
    }
  }
}

/// Reads a log, by its name; null if it is not one.
using Reader = void (*)(const std::string& path, Collector& collector);
Reader reader_of(const fs::path& path) {
  if (path.filename().string().find("tfevents") != std::string::npos) return read_event_file;
  if (path.extension() == ".csv") return read_csv;
  return path.extension() == ".jsonl" ? read_json_lines : nullptr;
}

/// The logs in a folder by the run to which they belong: event files of one folder are parts of one run, in order of their names.
std::map<std::string, std::vector<std::string>> logs_in(const std::string& folder, const std::string& run) {
  std::map<std::string, std::vector<std::string>> logs;
  for (const auto& entry : fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
    const Reader reader = reader_of(entry.path());
    if (reader == nullptr || !entry.is_regular_file()) continue;
    const fs::path own = fs::relative(reader == read_event_file ? entry.path().parent_path() : entry.path(), folder);
    const std::string name = own.string();  // of a CSV file with its ending: there may be JSON lines beside it
    logs[name == "." ? run : run.empty() ? name : str(run, '/', name)].push_back(entry.path().string());
  }
  for (auto& [name, paths] : logs) std::ranges::sort(paths);
  return logs;
}

}  // namespace

std::vector<Curve> read_curves(const std::string& path, const std::string& run) {
  std::error_code failed;
  const auto status = fs::status(path, failed);
  if (!fs::exists(status)) data::throw_file_error("read", path, ENOENT);
  if (!fs::is_directory(status)) {
    const Reader reader = reader_of(path);
    if (reader == nullptr) refuse(path, "its name does not end in .csv or .jsonl, and has no \"tfevents\"");
    Collector collector(run);
    reader(path, collector);
    return collector.take();
  }
  std::vector<Curve> curves;
  for (const auto& [name, paths] : logs_in(path, run)) {
    Collector collector(name);
    for (const std::string& log : paths) reader_of(log)(log, collector);
    std::ranges::move(collector.take(), std::back_inserter(curves));
  }
  if (curves.empty()) refuse(path, "the folder has no values in *.csv, *.jsonl or *tfevents*");
  return curves;
}

std::vector<CurvePoint> smoothed(const std::vector<CurvePoint>& points, double weight) {
  std::vector<CurvePoint> result = points;
  double average = 0, total = 0;  // the average begins at 0, which `total` takes out again
  for (CurvePoint& point : result) {
    if (!std::isfinite(point.y)) continue;
    average = weight * average + (1 - weight) * point.y;
    total = weight * total + (1 - weight);
    point.y = average / total;
  }
  return result;
}

std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points, std::size_t parts) {
  if (points.size() <= 2 * parts) return points;
  std::vector<CurvePoint> kept;
  for (std::size_t part = 0; part < parts; ++part) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(part * points.size() / parts);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>((part + 1) * points.size() / parts);
    auto least = end, greatest = end;
    for (auto point = begin; point != end; ++point) {
      if (!std::isfinite(point->y)) continue;
      if (least == end || point->y < least->y) least = point;
      if (greatest == end || point->y > greatest->y) greatest = point;
    }
    if (least == end) least = greatest = begin;
    kept.push_back(*std::min(least, greatest));
    if (least != greatest) kept.push_back(*std::max(least, greatest));
  }
  return kept;
}

}  // namespace lockstep::train
