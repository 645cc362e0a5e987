#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/data/format/csv_scan.h"
#include "lockstep/data/format/record_reader.h"

namespace lockstep::data {

/// In the order of `CsvType`.
using CsvValue = std::variant<std::int32_t, std::int64_t, float, double, std::string_view>;

/// Parses the text as a value of this type; nothing if it is invalid. Ignores blanks around a number and one plus sign.
LOCKSTEP_EXPORT std::optional<CsvValue> csv_value(std::string_view text, CsvType type);

/// Reads a CSV file by RFC 4180: quoted fields may contain delimiters, line ends and doubled quotes; lines end with `\r
/// ` or `
/// `. All records have the same number of fields. Skips empty lines, except in files whose first other record has a
/// single column, whichever columns are read; before a header, and in a file with nothing else, empty lines are always
/// skipped. Skips a byte order mark at the start. Ignores blanks around a number.
class LOCKSTEP_EXPORT CsvReader final : public RecordReader {
 public:
  explicit CsvReader(const std::string& path, const CsvOptions& options = {})
      : CsvReader(ByteReader(path, options.compression, options.buffer_bytes), options) {}
  CsvReader(ByteReader reader, CsvOptions options);

  /// One value per requested column; strings are valid until the next call. `next` throws DataLoss if the record is
  /// broken and InvalidArgument if a field does not fit its column, with file, record, line, column and byte.
  std::span<const CsvValue> values() const { return values_; }

  /// The columns that are read, with name (if there is a header) and index.
  std::span<const CsvColumn> columns() const { return columns_; }

  /// A broken record ends with its line. After an unclosed quote the next record cannot be found.
  bool pass_over() override;

 private:
  bool read_record() override;
  std::uint64_t skip_records(std::uint64_t count) override;  ///< does not convert fields
  std::string place() const override { return place_at(0); }

  void forget_record() override { values_.clear(); }
  bool find_record();
  bool find_whole_record();
  void go_back(const RecordPosition& start);
  bool scan();
  void require_all_fields() const;
  void finish();
  void find_columns();
  void find_index(CsvColumn& column, std::size_t number, const std::vector<std::string>& names) const;
  CsvValue convert(std::size_t column);
  std::string place_at(std::size_t offset) const;
  [[noreturn]] void broken(const std::string& what, const std::string& where, const std::string& seen,
                           const std::string& help) const;
  [[noreturn]] void wrong_field(std::size_t column, std::string_view content, const std::string& what) const;

  CsvOptions options_;
  std::vector<CsvColumn> columns_;
  std::vector<CsvValue> defaults_;  // per column; used only if it has one
  std::size_t field_count_ = 0;     // per record; 0: not known yet

  // The current record.
  std::string_view text_;
  CsvScan scanned_;
  std::vector<CsvField> fields_;
  std::string scratch_;
  std::vector<CsvValue> values_;
};

}  // namespace lockstep::data
