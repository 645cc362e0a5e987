#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/format/byte_reader.h"
#include "lockstep/data/format/csv_scan.h"
#include "lockstep/data/format/record_position.h"

namespace lockstep::data {

enum class CsvType { Int32, Int64, Float32, Float64, String };

LOCKSTEP_EXPORT std::string_view to_string(CsvType type);  ///< "int32", ..., "string"

/// The order is that of `CsvType`.
using CsvValue = std::variant<std::int32_t, std::int64_t, float, double, std::string_view>;

/// A column to be read. It is found by its name in the header, else by its index, else by its place in the list.
struct CsvColumn {
  CsvType type = CsvType::String;
  std::string name;
  int index = -1;
  /// Stands for a field that is empty or equal to `na_value`. Without it such a field is an error, but for strings,
  /// which may be empty.
  std::optional<std::string> default_value;
};

struct CsvOptions {
  std::vector<CsvColumn> columns;  ///< what to read, in this order; none: all columns of the first record, as strings
  bool header = true;              ///< the first record has the columns' names
  char delimiter = ',';
  bool quotes = true;  ///< `"` encloses fields
  std::string na_value;
  Compression compression = Compression::None;
  std::uint64_t max_record_bytes = std::uint64_t{64} << 20;  ///< a longer one is an error: a quote may not be closed
  std::size_t buffer_bytes = ByteReader::kDefaultBuffer;
};

/// InvalidArgument if no file can be read with these: a default that is no value of its column, a delimiter that is
/// none.
LOCKSTEP_EXPORT void require_valid(const CsvOptions& options);

/// Reads a CSV file as RFC 4180 has it: fields in quotes may hold delimiters, line ends and doubled quotes; lines end
/// with `\r\n` or `\n`. All records have the same number of fields. Lines without any character are left out, unless
/// the file has one column only: its first other record tells, whichever columns are asked for. Before a header, and in
/// a file that has nothing else, they are always left out. A byte order mark at the start is left out. Blanks around a
/// number do not matter.
class LOCKSTEP_EXPORT CsvReader {
 public:
  explicit CsvReader(const std::string& path, const CsvOptions& options = {});
  CsvReader(ByteReader reader, CsvOptions options);

  /// Goes to the next record; false at the end. DataLoss if the record is broken, InvalidArgument if a field does not
  /// fit its column; the message has file, record, line, column and byte.
  bool next();

  /// One value per column that was asked for; strings are valid until the next call.
  std::span<const CsvValue> values() const { return values_; }

  /// The columns that are read, with name (if there is a header) and index.
  std::span<const CsvColumn> columns() const { return columns_; }

  /// Goes past up to `count` records and returns past how many; their fields are not converted.
  std::uint64_t skip(std::uint64_t count);

  /// After an error: goes behind the record that caused it, which ends with its line. False if its end cannot be found,
  /// as behind a quote that does not close: then nothing of the rest can be told apart.
  bool pass_over();

  RecordPosition position() const { return {next_record_, reader_.offset(), line_}; }
  void restore(const RecordPosition& position);
  const std::string& path() const { return reader_.path(); }

 private:
  bool find_record();
  bool find_whole_record();
  void go_back(const RecordPosition& start);
  bool scan();
  void require_all_fields() const;
  void finish();
  void find_columns();
  CsvValue convert(std::size_t column);
  std::string place(std::size_t offset) const;
  [[noreturn]] void wrong_field(std::size_t column, std::string_view content, const std::string& what) const;

  ByteReader reader_;
  CsvOptions options_;
  CsvDialect dialect_;
  std::vector<CsvColumn> columns_;
  std::vector<CsvValue> defaults_;  // of the columns; looked at only where there is one
  std::size_t field_count_ = 0;     // per record; 0: not known yet
  std::uint64_t next_record_ = 0;
  std::uint64_t line_ = 0;

  // The record at hand.
  std::string_view text_;
  CsvScan scanned_;
  std::vector<CsvField> fields_;
  std::string scratch_;
  std::vector<CsvValue> values_;
};

}  // namespace lockstep::data
