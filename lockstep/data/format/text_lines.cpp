#include "lockstep/data/format/text_lines.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/file_error.h"

namespace lockstep::data {

TextLineReader::TextLineReader(const std::string& path, const TextLineOptions& options)
    : TextLineReader(ByteReader(path, options.compression, options.buffer_bytes), options) {}

TextLineReader::TextLineReader(ByteReader reader, const TextLineOptions& options)
    : reader_(std::move(reader)), options_(options) {}

void TextLineReader::restore(const RecordPosition& position) {
  reader_.seek(position.offset);
  next_line_ = position.record;
}

std::string_view TextLineReader::without_returns(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  if (line.find('\r') == std::string_view::npos) return line;
  scratch_.clear();
  std::ranges::remove_copy(line, std::back_inserter(scratch_), '\r');
  return scratch_;
}

bool TextLineReader::next() try {
  line_ = {};
  std::string_view bytes = reader_.peek(1);
  if (bytes.empty()) return false;
  std::size_t looked_at = 0;
  for (;;) {
    const std::size_t end = bytes.find('\n', looked_at);
    const bool has_end = end != std::string_view::npos;
    if ((has_end ? end : bytes.size()) > options_.max_line_bytes) {
      throw DataLoss(errors::kRecord, {.what = str(path(), " has a line that is too long"),
                                       .where = record_place(next_line_, reader_.offset(), path()),
                                       .seen = str("more than max_line_bytes = ", options_.max_line_bytes),
                                       .help = "is it a text file? then raise max_line_bytes"});
    }
    if (has_end) {
      line_ = without_returns(bytes.substr(0, end));
      reader_.consume(end + 1);
      break;
    }
    looked_at = bytes.size();
    bytes = reader_.peek(looked_at + 1);
    if (bytes.size() == looked_at) {
      line_ = without_returns(bytes);
      reader_.consume(looked_at);
      if (line_.empty()) return false;
      break;
    }
  }
  ++next_line_;
  return true;
} catch (DataLoss& error) {
  if (error.number() == errors::kCompression) error.add_where(record_place(next_line_, reader_.offset(), path()));
  throw;
}

std::uint64_t TextLineReader::skip(std::uint64_t count) {
  std::uint64_t skipped = 0;
  while (skipped < count && next()) ++skipped;
  line_ = {};
  return skipped;
}

}  // namespace lockstep::data
