#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"

// Options of the file readers.
namespace lockstep::data {

/// How the bytes of a whole file are compressed.
enum class Compression {
  None,
  Zlib,  ///< RFC 1950
  Gzip,  ///< RFC 1952; several concatenated members are one file
};

LOCKSTEP_EXPORT std::string_view to_string(Compression compression);  ///< "", "ZLIB", "GZIP", as TensorFlow names them

/// The compression with this name ("", "NONE", "ZLIB" or "GZIP"); InvalidArgument for any other.
LOCKSTEP_EXPORT Compression compression_named(std::string_view name);

/// How many bytes a reader asks the system for at a time.
inline constexpr std::size_t kReadBuffer = std::size_t{256} << 10;

/// What a reader does with a damaged record.
enum class OnDamage {
  Fail,  ///< DataLoss with file, record and offset
  /// Skips the record and counts it. If its length is intact, continues with the next record; otherwise at the next
  /// position whose 12 bytes are a length that fits into the file and its checksum. Damaged compression always fails:
  /// nothing after it can be read.
  Skip,
};

/// Options for reading TFRecord files.
struct TFRecordOptions {
  Compression compression = Compression::None;  ///< how the whole file is compressed
  OnDamage on_damage = OnDamage::Fail;          ///< what a damaged record does
  /// A longer record counts as damaged. The records of an uncompressed file cannot be longer than the file either.
  std::uint64_t max_record_bytes = std::uint64_t{1} << 30;
  std::size_t buffer_bytes = kReadBuffer;  ///< bytes read at a time
};

/// Options for reading text files.
struct TextLineOptions {
  Compression compression = Compression::None;              ///< how the whole file is compressed
  std::uint64_t max_line_bytes = std::uint64_t{256} << 20;  ///< a longer line is an error
  std::size_t buffer_bytes = kReadBuffer;                   ///< bytes read at a time
};

/// Options for reading files of records of one length.
struct FixedLengthOptions {
  std::uint64_t record_bytes = 0;               ///< required
  std::uint64_t header_bytes = 0;               ///< left out at the start
  std::uint64_t footer_bytes = 0;               ///< left out at the end
  Compression compression = Compression::None;  ///< how the whole file is compressed
  std::size_t buffer_bytes = kReadBuffer;       ///< bytes read at a time
};

/// What the values of a CSV column are.
enum class CsvType { Int32, Int64, Float32, Float64, String };

LOCKSTEP_EXPORT std::string_view to_string(CsvType type);  ///< "int32", ..., "string"

/// A column to read, found by its name in the header, otherwise by its index, otherwise by its position in the list.
struct CsvColumn {
  CsvType type = CsvType::String;  ///< what the values are
  std::string name;                ///< name in the header; empty: not found by name
  int index = -1;                  ///< counts from 0; -1: not found by index
  /// Stands for a field that is empty or equal to `na_value`. Without it such a field is an error, except for strings,
  /// which may be empty.
  std::optional<std::string> default_value;
};

/// Options for reading CSV files.
struct CsvOptions {
  std::vector<CsvColumn> columns;  ///< the columns to read, in order; none: all of the first record, as strings
  bool header = true;              ///< the first record has the columns' names
  char delimiter = ',';            ///< between fields
  bool quotes = true;              ///< `"` encloses fields
  std::string na_value;            ///< a field equal to it has no value
  Compression compression = Compression::None;               ///< how the whole file is compressed
  std::uint64_t max_record_bytes = std::uint64_t{64} << 20;  ///< a longer one is an error: a quote may not be closed
  std::size_t buffer_bytes = kReadBuffer;                    ///< bytes read at a time
};

/// InvalidArgument if the options cannot be used to read any file.
LOCKSTEP_EXPORT void require_valid(const FixedLengthOptions& options);
LOCKSTEP_EXPORT void require_valid(const CsvOptions& options);

}  // namespace lockstep::data
