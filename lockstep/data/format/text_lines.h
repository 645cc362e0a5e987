#pragma once

#include <string>
#include <string_view>

#include "lockstep/data/format/record_reader.h"

namespace lockstep::data {

/// Reads a text file line by line; each line is a record. A line ends with `
/// `, which is not part of it; a last line without it counts unless it is empty. Carriage returns are dropped
/// everywhere, as in TensorFlow, so ported programs see the same lines.
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
  std::string scratch_;  // for lines that contain carriage returns
};

}  // namespace lockstep::data
