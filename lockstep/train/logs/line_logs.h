#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/train/logs/line_file.h"

namespace lockstep::train {

struct LineLogOptions {
  /// Name of the column with the number of the row.
  std::string key = "epoch";
  /// Set when a training is resumed: rows with a greater number are cut off, the others stay. Without it an old file is replaced.
  std::optional<std::int64_t> resume_after = {};
};

/// Writes a CSV file with a row per epoch (or step) and a column per value. A column that first comes later is added to the
/// header, and is empty in earlier rows. A row is in the file when `write` returns.
///
///     CsvLog log("logs/training.csv");
///     log.write(0, {{"loss", 2.3}, {"accuracy", 0.1}});
class LOCKSTEP_EXPORT CsvLog {
 public:
  explicit CsvLog(const std::string& path, LineLogOptions options = {});

  void write(std::int64_t number, const std::map<std::string, double>& values);

 private:
  void add_columns(const std::map<std::string, double>& values);

  LineLogOptions options_;
  std::vector<std::string> columns_;  ///< without the key; empty before the first row
  detail::LineFile file_;
};

/// Writes a file with a JSON object per line: {"epoch":0,"accuracy":0.1,"loss":2.3}. NaN and infinity are strings, as in
/// protobuf's JSON: "NaN", "Infinity", "-Infinity".
class LOCKSTEP_EXPORT JsonLinesLog {
 public:
  explicit JsonLinesLog(const std::string& path, LineLogOptions options = {});

  void write(std::int64_t number, const std::map<std::string, double>& values);

 private:
  LineLogOptions options_;
  detail::LineFile file_;
};

}  // namespace lockstep::train
