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
  std::size_t start = 0;  ///< start of the content, without quotes
  std::size_t size = 0;
  bool doubled_quotes = false;  ///< `""` inside stands for `"`
};

/// The result of scanning the start of a text.
struct CsvScan {
  enum class State {
    Record,      ///< a whole record; `fields` are set
    BlankLine,   ///< a line without any character
    Unfinished,  ///< the text ends before the record does
    Broken,      ///< `error` at `error_at`, within a line that ends the record
    Endless,     ///< the same after an unclosed quote: the start of the next record is unknown
  } state = State::Unfinished;
  std::size_t size = 0;     ///< bytes of the record, including its line end
  std::uint64_t lines = 0;  ///< line ends in it
  std::size_t error_at = 0;
  const char* error = nullptr;
};

/// Finds the fields of the record at the start of `text` by RFC 4180. `is_last`: no text follows, so the record may
/// lack a line end. Ignores columns and types.
CsvScan scan_csv_record(std::string_view text, bool is_last, const CsvOptions& options, std::vector<CsvField>& fields);

/// The content of a field; doubled quotes are resolved in `scratch`.
std::string_view csv_content(std::string_view text, const CsvField& field, std::string& scratch);

}  // namespace lockstep::data
