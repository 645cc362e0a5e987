#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/format/reader_options.h"

namespace lockstep::data {

/// One field of a record, as a range of the scanned text.
struct CsvField {
  std::size_t start = 0;        ///< start of the content, without quotes
  std::size_t size = 0;         ///< bytes of it
  bool doubled_quotes = false;  ///< `""` inside stands for `"`
};

/// The result of scanning the start of a text.
struct CsvScan {
  /// How a text can begin.
  enum class State {
    Record,                     ///< a whole record; `fields` are set
    BlankLine,                  ///< a line without any character
    Unfinished,                 ///< the text ends before the record does
    Broken,                     ///< `error` at `error_at`, within a line that ends the record
    Endless,                    ///< the same, where a quote does not close: the start of the next record is unknown
  } state = State::Unfinished;  ///< how the text begins
  std::size_t size = 0;         ///< bytes of the record with its line end
  std::uint64_t lines = 0;      ///< line ends in it
  std::size_t error_at = 0;     ///< where in the text
  const char* error = nullptr;  ///< what is wrong; null: nothing
};

/// Finds the fields of the record at the start of `text` by RFC 4180. `is_last`: no text follows, so the record may
/// lack a line end. Ignores columns and types.
CsvScan scan_csv_record(std::string_view text, bool is_last, const CsvOptions& options, std::vector<CsvField>& fields);

/// The content of a field; doubled quotes are resolved in `scratch`.
std::string_view csv_content(std::string_view text, const CsvField& field, std::string& scratch);

}  // namespace lockstep::data
