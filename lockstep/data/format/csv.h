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

/// The order is that of `CsvType`.
using CsvValue = std::variant<std::int32_t, std::int64_t, float, double, std::string_view>;

/// The text as a value of this type; nothing if it is not one. Blanks around a number and one plus sign do not matter.
LOCKSTEP_EXPORT std::optional<CsvValue> csv_value(std::string_view text, CsvType type);

/// Reads a CSV file as RFC 4180 has it: fields in quotes may hold delimiters, line ends and doubled quotes; lines end
/// with `\r\n` or `\n`. All records have the same number of fields. Lines without any character are left out, unless
/// the file has one column only, as its first other record shows, whichever columns are asked for. Before a header, and
/// in a file that has nothing else, they are always left out. A byte order mark at the start is left out. Blanks around
/// a number do not matter.
class LOCKSTEP_EXPORT CsvReader final : public RecordReader {
 public:
  explicit CsvReader(const std::string& path, const CsvOptions& options = {})
      : CsvReader(ByteReader(path, options.compression, options.buffer_bytes), options) {}
  CsvReader(ByteReader reader, CsvOptions options);

  /// One value per column that was asked for; strings are valid until the next call. `next` throws DataLoss if the
  /// record is broken and InvalidArgument if a field does not fit its column, with file, record, line, column and byte.
  std::span<const CsvValue> values() const { return values_; }

  /// The columns that are read, with name (if there is a header) and index.
  std::span<const CsvColumn> columns() const { return columns_; }

  /// A broken record ends with its line. Behind a quote that does not close no record can be told from another.
  bool pass_over() override;

 private:
  bool read_record() override;
  std::uint64_t skip_records(std::uint64_t count) override;  ///< converts no fields
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
  std::vector<CsvValue> defaults_;  // of the columns; used only where there is one
  std::size_t field_count_ = 0;     // per record; 0: not known yet

  // The record at hand.
  std::string_view text_;
  CsvScan scanned_;
  std::vector<CsvField> fields_;
  std::string scratch_;
  std::vector<CsvValue> values_;
};

}  // namespace lockstep::data
