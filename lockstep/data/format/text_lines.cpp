#include "lockstep/data/format/text_lines.h"

#include <algorithm>
#include <iterator>

#include "lockstep/base/text.h"

namespace lockstep::data {

std::string_view TextLineReader::without_returns(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  if (line.find('\r') == std::string_view::npos) return line;
  scratch_.clear();
  std::ranges::remove_copy(line, std::back_inserter(scratch_), '\r');
  return scratch_;
}

bool TextLineReader::read_record() {
  std::string_view bytes = reader_.peek(1);
  if (bytes.empty()) return false;
  std::size_t end = bytes.find('\n');
  bool at_end = false;
  while (end == std::string_view::npos && !at_end && bytes.size() <= options_.max_line_bytes) {
    const std::size_t seen = bytes.size();
    bytes = reader_.peek(seen + 1);
    at_end = bytes.size() == seen;
    end = bytes.find('\n', seen);
  }
  const std::size_t size = std::min(end, bytes.size());
  if (size > options_.max_line_bytes) {
    throw DataLoss(errors::kRecord,
                   {.what = str(path(), " has a line of more than ", options_.max_line_bytes, " bytes"),
                    .where = place(),
                    .seen = str("max_line_bytes = ", options_.max_line_bytes),
                    .help = "check that it is a text file, or raise max_line_bytes"});
  }
  record_ = without_returns(bytes.substr(0, size));
  reader_.consume(at_end ? size : size + 1);
  if (at_end && record_.empty()) return false;
  ++next_record_;
  return true;
}

}  // namespace lockstep::data
