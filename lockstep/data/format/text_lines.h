#pragma once

#include <string>
#include <string_view>

#include "lockstep/data/format/record_reader.h"

namespace lockstep::data {

/// Reads a text file line by line; each line is a record. A line ends with `\n`, which is not part of it; a last one
/// without end counts, unless it is empty. Carriage returns are dropped wherever they stand, as in TensorFlow: programs
/// that move between the two see the same lines.
class LOCKSTEP_EXPORT TextLineReader final : public RecordReader {
 public:
  explicit TextLineReader(const std::string& path, const TextLineOptions& options = {})
      : TextLineReader(ByteReader(path, options.compression, options.buffer_bytes), options) {}
  TextLineReader(ByteReader reader, const TextLineOptions& options)
      : RecordReader(std::move(reader)), options_(options) {}

 private:
  bool read_record() override;
  std::string_view without_returns(std::string_view line);

  TextLineOptions options_;
  std::string scratch_;  // of a line with carriage returns inside
};

}  // namespace lockstep::data
