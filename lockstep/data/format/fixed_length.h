#pragma once

#include <cstdint>
#include <string>

#include "lockstep/data/format/record_reader.h"

namespace lockstep::data {

/// Reads records that all have the same number of bytes, with nothing between them. DataLoss if the bytes between header
/// and footer are not a whole number of records: found at once in a plain file, at the end of a compressed one.
class LOCKSTEP_EXPORT FixedLengthReader final : public RecordReader {
 public:
  FixedLengthReader(const std::string& path, const FixedLengthOptions& options)
      : FixedLengthReader(ByteReader(path, options.compression, options.buffer_bytes), options) {}
  FixedLengthReader(ByteReader reader, const FixedLengthOptions& options);

  bool jumps() const override { return options_.compression == Compression::None; }

 private:
  bool read_record() override;
  std::uint64_t skip_records(std::uint64_t count) override;
  void check_size() const;
  [[noreturn]] void cut_off(const std::string& what, const std::string& where, const std::string& seen) const;

  FixedLengthOptions options_;
};

}  // namespace lockstep::data
