#include "lockstep/train/logs/line_logs.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/train/logs/csv_line.h"
#include "lockstep/values/float_text.h"

namespace lockstep::train {
namespace {

using Json = nlohmann::json;

void require_name(const std::string& name) {
  if (name.find_first_of("\n\r") == name.npos) return;
  throw InvalidArgument(errors::kBadOption, {.what = "the name of a logged value must not contain a line end, got " +
                                                     Json(name).dump(-1, ' ', false, Json::error_handler_t::replace),
                                             .help = "give the metric a name of one line"});
}

std::string csv_row(const std::string& first, const std::vector<std::string>& fields) {
  return fields.empty() ? first : str(first, ',', data::listed(fields, ","));
}

std::string header_of(const std::string& key, const std::vector<std::string>& columns) {
  std::vector<std::string> fields;
  for (const std::string& column : columns) fields.push_back(detail::csv_field(column));
  return csv_row(detail::csv_field(key), fields);
}

/// Whether a field holds a row number up to `last`.
bool is_row_up_to(std::int64_t last, std::string_view field) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number);
  return error == std::errc() && end == field.data() + field.size() && number <= last;
}

[[noreturn]] void refuse_other_file(const std::string& path, const std::string& key, const std::string& seen) {
  throw FailedPrecondition(errors::kFile,
                           {.what = str(path, " is not a log of this training: it has no '", key, "' in front"),
                            .seen = seen,
                            .help = "give the path of the log that the training began, or one where no file is"});
}

detail::LineFile open_csv(const std::string& path, const LineLogOptions& options, std::vector<std::string>& columns) {
  require_name(options.key);
  return {path, [&](std::string_view line, std::int64_t number) {
            if (!options.resume_after) return false;
            auto fields = detail::csv_fields(line);
            if (number > 0) return is_row_up_to(*options.resume_after, fields.front());
            if (fields.front() != options.key)
              refuse_other_file(path, options.key, str("first line: ", line.substr(0, 80)));
            columns.assign(fields.begin() + 1, fields.end());
            return true;
          }};
}

detail::LineFile open_json(const std::string& path, const LineLogOptions& options) {
  return {path, [&](std::string_view line, std::int64_t number) {
            if (!options.resume_after) return false;
            const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
            const bool is_row = row.is_object() && row.contains(options.key) && row[options.key].is_number_integer();
            if (!is_row && number == 0) refuse_other_file(path, options.key, str("first line: ", line.substr(0, 80)));
            return is_row && row[options.key].get<std::int64_t>() <= *options.resume_after;
          }};
}

std::string json_number(double value) {
  if (std::isnan(value)) return R"("NaN")";
  if (std::isinf(value)) return value > 0 ? R"("Infinity")" : R"("-Infinity")";
  return float_text(value);
}

}  // namespace

CsvLog::CsvLog(const std::string& path, LineLogOptions options)
    : options_(std::move(options)), file_(open_csv(path, options_, columns_)) {}

void CsvLog::add_columns(const std::map<std::string, double>& values) {
  std::vector<std::string> columns = columns_;
  for (const auto& [name, value] : values) {
    if (std::ranges::find(columns, name) != columns.end()) continue;
    require_name(name);
    columns.push_back(name);
  }
  if (columns.size() == columns_.size() && !file_.empty()) return;
  std::string content = header_of(options_.key, columns) + '\n';
  const std::string old = file_.content();
  const std::string empty_fields(columns.size() - columns_.size(), ',');
  std::size_t end = old.find('\n');
  for (std::size_t at = end + 1; !file_.empty() && at < old.size(); at = end + 1) {
    end = old.find('\n', at);
    content += old.substr(at, end - at) + empty_fields + '\n';
  }
  file_.replace(content);
  columns_ = std::move(columns);
}

void CsvLog::write(std::int64_t number, const std::map<std::string, double>& values) {
  add_columns(values);
  std::vector<std::string> fields;
  for (const std::string& column : columns_) {
    const auto value = values.find(column);
    fields.push_back(value == values.end() ? "" : float_text(value->second));
  }
  file_.append(csv_row(std::to_string(number), fields));
}

JsonLinesLog::JsonLinesLog(const std::string& path, LineLogOptions options)
    : options_(std::move(options)), file_(open_json(path, options_)) {}

void JsonLinesLog::write(std::int64_t number, const std::map<std::string, double>& values) {
  const auto quoted = [](const std::string& name) {
    return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::string line = str('{', quoted(options_.key), ':', number);
  for (const auto& [name, value] : values) line += ',' + quoted(name) + ':' + json_number(value);
  file_.append(line + '}');
}

}  // namespace lockstep::train
