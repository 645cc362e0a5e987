#include "lockstep/data/format/csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/listed.h"

namespace lockstep::data {
namespace {

std::string_view without_blanks(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// For a decimal number that no float can represent: whether it is too small rather than too large.
bool is_tiny(std::string_view text) {
  static const locale_t plain = ::newlocale(LC_ALL_MASK, "C", nullptr);  // in others a comma may be the decimal point
  return std::abs(::strtod_l(std::string(text).c_str(), nullptr, plain)) < 1;
}

template <class T>
std::optional<CsvValue> number(std::string_view text) {
  text = without_blanks(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return std::nullopt;
  if (error == std::errc{}) return value;
  if constexpr (std::is_floating_point_v<T>) {
    // Too small is 0, as in TensorFlow. Too large is infinity there and an error here: infinity can be written as such.
    if (error == std::errc::result_out_of_range && is_tiny(text))
      return std::copysign(T{0}, text[0] == '-' ? T{-1} : T{1});
  }
  return std::nullopt;
}

/// "2 'age'", or "2" for a column without a name.
std::string label(int index, const std::string& name) {
  return name.empty() ? str(index) : str(index, ' ', in_quotes(name));
}

}  // namespace

std::optional<CsvValue> csv_value(std::string_view text, CsvType type) {
  switch (type) {
    case CsvType::Int32: return number<std::int32_t>(text);
    case CsvType::Int64: return number<std::int64_t>(text);
    case CsvType::Float32: return number<float>(text);
    case CsvType::Float64: return number<double>(text);
    case CsvType::String: return CsvValue(text);
  }
  return std::nullopt;
}

std::string_view to_string(CsvType type) {
  constexpr std::array<std::string_view, 5> kNames{"int32", "int64", "float32", "float64", "string"};
  return kNames.at(static_cast<std::size_t>(type));
}

void require_valid(const CsvOptions& options) {
  if (std::string_view("\r\n\"").find(options.delimiter) != std::string_view::npos)
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("delimiter must be neither a line end nor a quote, got ",
                                       in_quotes(std::string_view(&options.delimiter, 1))),
                           .help = "set CsvOptions::delimiter to the character between fields, such as ',' or '\\t'"});
  for (std::size_t i = 0; i < options.columns.size(); ++i) {
    const CsvColumn& column = options.columns[i];
    if (!column.default_value || csv_value(*column.default_value, column.type)) continue;
    throw InvalidArgument(
        errors::kCsv,
        {.what =
             str("the default of column ", label(column.index >= 0 ? column.index : static_cast<int>(i), column.name),
                 " must be of type ", to_string(column.type), ", got ", in_quotes(*column.default_value)),
         .help = "set its default_value to a value of this type, or read the column as string"});
  }
}

CsvReader::CsvReader(ByteReader reader, CsvOptions options)
    : RecordReader(std::move(reader)), options_(std::move(options)), columns_(options_.columns) {
  require_valid(options_);
  with_place([this] { find_columns(); });
}

std::string CsvReader::place_at(std::size_t offset) const {
  return str("record ", next_record_, " (line ", line_ + 1, ") at byte ", reader_.offset() + offset, " of ", path());
}

/// Finds the fields of the record at the current position without advancing; problems are recorded in `scanned_`. False
/// at the end of the file.
bool CsvReader::find_record() {
  scratch_.clear();
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (reader_.offset() == 0 && reader_.peek(kByteOrderMark.size()).starts_with(kByteOrderMark))
    reader_.consume(kByteOrderMark.size());
  for (std::size_t wanted = 1;;) {
    text_ = reader_.peek(wanted);
    if (text_.empty()) return false;
    scanned_ = scan_csv_record(text_, text_.size() < wanted, options_, fields_);
    if (scanned_.state == CsvScan::State::BlankLine && field_count_ != 1) {
      reader_.consume(scanned_.size);
      ++line_;
      wanted = 1;
    } else if (scanned_.state != CsvScan::State::Unfinished || text_.size() > options_.max_record_bytes) {
      return true;
    } else {
      wanted = 2 * text_.size();  // so that a long record is scanned only a few times
    }
  }
}

void CsvReader::broken(const std::string& what, const std::string& where, const std::string& seen,
                       const std::string& help) const {
  throw DataLoss(errors::kCsv, {.what = str(path(), what), .where = where, .seen = seen, .help = help});
}

bool CsvReader::scan() {
  using State = CsvScan::State;
  if (!find_record()) return false;
  if (scanned_.state == State::Unfinished || scanned_.size > options_.max_record_bytes) {
    broken(" has a record that is too long", place(), str("more than max_record_bytes = ", options_.max_record_bytes),
           "look for a quote that is not closed, or raise max_record_bytes");
  }
  if (scanned_.state == State::Broken || scanned_.state == State::Endless) {
    broken(str(" is not a CSV file by RFC 4180: ", scanned_.error),
           str("column ", fields_.size(), ", ", place_at(scanned_.error_at)),
           in_quotes(text_.substr(scanned_.error_at)),
           "enclose such fields in quotes and double the quotes inside, or set quotes = false if quotes mean nothing");
  }
  if (scanned_.state == State::BlankLine) fields_.assign(1, CsvField{});
  if (field_count_ == 0) field_count_ = fields_.size();
  return true;
}

// Separate from `scan`: if such a record is skipped, the next one begins right after it.
void CsvReader::require_all_fields() const {
  if (fields_.size() == field_count_) return;
  broken(str(" has a record with ", counted(static_cast<long long>(fields_.size()), "field"), ", the first record has ",
             field_count_),
         place(), in_quotes(text_.substr(0, scanned_.size)), "look for a missing delimiter or missing quotes");
}

void CsvReader::finish() {
  reader_.consume(scanned_.size);
  line_ += scanned_.lines;
  ++next_record_;
}

/// Advances to the first complete record, to count its fields; errors of those before it are thrown when they are read.
/// False if there is none.
bool CsvReader::find_whole_record() {
  for (;;) {
    try {
      return scan();
    } catch (const DataLoss& error) {
      if (error.number() != errors::kCsv || !pass_over()) return false;
    }
  }
}

/// Finds the index of a column: by its name in the header, otherwise as given, otherwise its position among the
/// columns.
void CsvReader::find_index(CsvColumn& column, std::size_t number, const std::vector<std::string>& names) const {
  const auto no_column = [&](const std::string& which, const std::string& seen) {
    throw InvalidArgument(errors::kCsv,
                          {.what = str(path(), " has no column ", which),
                           .where = place(),
                           .seen = seen,
                           .help = "check CsvOptions::columns against the file, and header and delimiter"});
  };
  if (!column.name.empty() && options_.header) {
    const auto found = std::ranges::find(names, column.name);
    if (found == names.end()) {
      const auto quoted = [](const std::string& name) { return in_quotes(name); };
      no_column(in_quotes(column.name), str("the header has ", listed(names, ", ", quoted)));
    }
    column.index = static_cast<int>(found - names.begin());
  } else if (column.index < 0) {
    column.index = static_cast<int>(number);
  }
  if (static_cast<std::size_t>(column.index) >= field_count_)
    no_column(str(column.index), str("its records have ", counted(static_cast<long long>(field_count_), "field")));
  if (options_.header) column.name = names[static_cast<std::size_t>(column.index)];
}

// Inspects the first record: for names if it is the header, otherwise only for the number of fields.
void CsvReader::find_columns() {
  const RecordPosition start = position();
  if (!(options_.header ? scan() : find_whole_record())) {
    if (!options_.header) return go_back(start);
    broken(" has no header", place(), "no record at all", "set header = false if the file has none");
  }
  std::vector<std::string> names;
  if (options_.header) {
    for (const CsvField& field : fields_) names.emplace_back(csv_content(text_, field, scratch_));
  }
  if (columns_.empty()) columns_.resize(field_count_);
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    CsvColumn& column = columns_[i];
    find_index(column, i, names);
    defaults_.emplace_back();
    if (column.default_value) defaults_.back() = csv_value(*column.default_value, column.type).value();
  }
  if (!options_.header) return go_back(start);
  finish();
  next_record_ = 0;
}

// Blank lines before the first record were skipped while it was unknown that they are records.
void CsvReader::go_back(const RecordPosition& start) {
  if (next_record_ > start.record || (field_count_ == 1 && line_ > start.line)) restore(start);
}

void CsvReader::wrong_field(std::size_t column, std::string_view content, const std::string& what) const {
  const CsvColumn& wanted = columns_[column];
  const std::size_t start = fields_[static_cast<std::size_t>(wanted.index)].start;
  throw InvalidArgument(errors::kCsv, {.what = str(path(), " has a field that ", what),
                                       .where = str("column ", label(wanted.index, wanted.name), ", ", place_at(start)),
                                       .seen = in_quotes(content),
                                       .help = str("correct the field, give column ", wanted.index,
                                                   " a default for missing values, or read it as string")});
}

CsvValue CsvReader::convert(std::size_t column) {
  const CsvColumn& wanted = columns_[column];
  const CsvField& field = fields_[static_cast<std::size_t>(wanted.index)];
  const std::string_view content = csv_content(text_, field, scratch_);
  if (content.empty() || (!options_.na_value.empty() && content == options_.na_value)) {
    if (wanted.default_value) return defaults_[column];
    if (wanted.type == CsvType::String) return content;
    wrong_field(column, content, "is missing and has no default");
  }
  if (const auto value = csv_value(content, wanted.type)) return *value;
  wrong_field(column, content, str("is not of type ", to_string(wanted.type)));
}

bool CsvReader::read_record() {
  values_.clear();
  if (!scan()) return false;
  require_all_fields();
  // Reserve room for all unquoted contents: growing would move those that values already point to.
  std::size_t room = 0;
  for (const CsvColumn& column : columns_) {
    const CsvField& field = fields_[static_cast<std::size_t>(column.index)];
    if (field.doubled_quotes) room += field.size;
  }
  scratch_.reserve(room);
  for (std::size_t i = 0; i < columns_.size(); ++i) values_.push_back(convert(i));
  finish();
  return true;
}

std::uint64_t CsvReader::skip_records(std::uint64_t count) {
  values_.clear();
  std::uint64_t skipped = 0;
  for (; skipped < count && scan(); ++skipped) finish();
  return skipped;
}

bool CsvReader::pass_over() {
  values_.clear();
  if (!find_record() || scanned_.size > options_.max_record_bytes) return false;
  switch (scanned_.state) {
    case CsvScan::State::Record:
    case CsvScan::State::BlankLine: finish(); return true;
    case CsvScan::State::Unfinished:
    case CsvScan::State::Endless: return false;
    case CsvScan::State::Broken: break;
  }
  ++next_record_;
  const std::string_view before = text_.substr(0, scanned_.error_at);
  line_ += static_cast<std::uint64_t>(std::ranges::count(before, '\n'));
  reader_.consume(before.size());
  for (std::string_view rest = reader_.peek(1); !rest.empty(); rest = reader_.peek(1)) {
    const std::size_t end = rest.find('\n');
    reader_.consume(std::min(end, rest.size() - 1) + 1);
    if (end == std::string_view::npos) continue;
    ++line_;
    break;
  }
  return true;
}

}  // namespace lockstep::data
