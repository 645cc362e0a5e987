#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"
#include "lockstep/data/format/byte_reader.h"
#include "lockstep/data/format/record_position.h"

namespace lockstep::data {

struct TextLineOptions {
  Compression compression = Compression::None;
  std::uint64_t max_line_bytes = std::uint64_t{256} << 20;  ///< a longer line is an error
  std::size_t buffer_bytes = ByteReader::kDefaultBuffer;
};

/// Reads a text file line by line. A line ends with `\n`, which is not part of it; a last one without end counts,
/// unless it is empty. Carriage returns are no part of a line wherever they stand, as in TensorFlow: programs that move
/// between the two see the same lines.
class LOCKSTEP_EXPORT TextLineReader {
 public:
  explicit TextLineReader(const std::string& path, const TextLineOptions& options = {});
  TextLineReader(ByteReader reader, const TextLineOptions& options);

  bool next();                                     ///< false at the end
  std::string_view line() const { return line_; }  ///< valid until the next call
  std::uint64_t skip(std::uint64_t count);         ///< past how many lines it went

  RecordPosition position() const { return {next_line_, reader_.offset(), 0}; }
  void restore(const RecordPosition& position);
  const std::string& path() const { return reader_.path(); }

 private:
  std::string_view without_returns(std::string_view line);

  ByteReader reader_;
  TextLineOptions options_;
  std::uint64_t next_line_ = 0;
  std::string_view line_;
  std::string scratch_;  // of a line with carriage returns inside
};

}  // namespace lockstep::data
