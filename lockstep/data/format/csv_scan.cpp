#include "lockstep/data/format/csv_scan.h"

#include <algorithm>

namespace lockstep::data {
namespace {

using ScanState = CsvScan::State;

// Scans one record; a member function per part, so that each can report that the text is too short.
class Scanner {
 public:
  Scanner(std::string_view text, bool is_last, const CsvOptions& options, std::vector<CsvField>& fields)
      : text_(text), is_last_(is_last), options_(options), fields_(fields) {}

  CsvScan scan() {
    fields_.clear();
    if (line_end_at(0) && !unfinished_) {
      take_line_end();
      return result(ScanState::BlankLine);
    }
    do {
      const bool ok = at_ < text_.size() && text_[at_] == '"' && options_.quotes ? quoted_field() : plain_field();
      if (!ok) return scan_;
    } while (take_delimiter());
    if (at_ == text_.size()) return is_last_ ? result(ScanState::Record) : result(ScanState::Unfinished);
    take_line_end();
    return result(ScanState::Record);
  }

 private:
  CsvScan result(ScanState state) {
    scan_.state = state;
    scan_.size = at_;
    return scan_;
  }

  bool stop(ScanState state) {
    result(state);
    return false;
  }

  bool broken(std::size_t at, const char* what, ScanState state = ScanState::Broken) {
    scan_.error_at = at;
    scan_.error = what;
    return stop(state);
  }

  bool line_end_at(std::size_t at) {
    if (at >= text_.size()) return false;
    if (text_[at] == '\n') return true;
    if (text_[at] != '\r') return false;
    if (at + 1 < text_.size()) return text_[at + 1] == '\n';
    unfinished_ = !is_last_;
    return unfinished_;
  }

  void take_line_end() {
    at_ += text_[at_] == '\r' ? 2 : 1;
    ++scan_.lines;
  }

  bool take_delimiter() {
    if (at_ >= text_.size() || text_[at_] != options_.delimiter) return false;
    ++at_;
    return true;
  }

  bool plain_field() {
    const std::size_t start = at_;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == options_.delimiter || c == '\n') break;
      if (c == '\r') {
        if (line_end_at(at_)) break;
        return broken(at_, "a carriage return inside a field without quotes");
      }
      if (c == '"' && options_.quotes) return broken(at_, "a quote inside a field without quotes");
    }
    if (unfinished_ || (at_ == text_.size() && !is_last_)) return stop(ScanState::Unfinished);
    fields_.push_back({.start = start, .size = at_ - start});
    return true;
  }

  bool quoted_field() {
    const std::size_t open = at_++;
    bool doubled = false;
    for (;;) {
      const std::size_t quote = text_.find('"', at_);
      if (quote == std::string_view::npos) {
        at_ = text_.size();
        return is_last_ ? broken(open, "a quote that does not close", ScanState::Endless) : stop(ScanState::Unfinished);
      }
      if (quote + 1 == text_.size() && !is_last_) return stop(ScanState::Unfinished);
      at_ = quote + 1;
      if (at_ == text_.size() || text_[at_] != '"') break;
      doubled = true;
      ++at_;
    }
    const std::size_t close = at_ - 1;
    const bool ends = at_ == text_.size() || text_[at_] == options_.delimiter || line_end_at(at_);
    if (!ends) return broken(at_, "text behind a closing quote");
    if (unfinished_) return stop(ScanState::Unfinished);
    const auto content = text_.substr(open + 1, close - open - 1);
    scan_.lines += static_cast<std::uint64_t>(std::count(content.begin(), content.end(), '\n'));
    fields_.push_back({.start = open + 1, .size = content.size(), .doubled_quotes = doubled});
    return true;
  }

  std::string_view text_;
  bool is_last_;
  const CsvOptions& options_;  // only `delimiter` and `quotes` are used
  std::vector<CsvField>& fields_;
  CsvScan scan_;
  std::size_t at_ = 0;
  bool unfinished_ = false;  // a carriage return is the last character: the next one decides
};

}  // namespace

CsvScan scan_csv_record(std::string_view text, bool is_last, const CsvOptions& options, std::vector<CsvField>& fields) {
  return Scanner(text, is_last, options, fields).scan();
}

std::string_view csv_content(std::string_view text, const CsvField& field, std::string& scratch) {
  const std::string_view raw = text.substr(field.start, field.size);
  if (!field.doubled_quotes) return raw;
  const std::size_t begin = scratch.size();
  for (std::size_t i = 0; i < raw.size(); ++i) {
    scratch += raw[i];
    if (raw[i] == '"') ++i;
  }
  return std::string_view(scratch).substr(begin);
}

}  // namespace lockstep::data
