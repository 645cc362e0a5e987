#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/data/format/byte_reader.h"
#include "lockstep/data/format/record_position.h"

namespace lockstep::data {

struct FixedLengthOptions {
  std::uint64_t record_bytes = 0;  ///< must be given
  std::uint64_t header_bytes = 0;  ///< left out at the start
  std::uint64_t footer_bytes = 0;  ///< left out at the end
  Compression compression = Compression::None;
  std::size_t buffer_bytes = ByteReader::kDefaultBuffer;
};

/// InvalidArgument if no file can be read with these.
LOCKSTEP_EXPORT void require_valid(const FixedLengthOptions& options);

/// Reads records that all have the same number of bytes, without anything between them. DataLoss if what lies between
/// header and footer is no whole number of records: found at once in a plain file, at the end of a compressed one.
class LOCKSTEP_EXPORT FixedLengthReader {
 public:
  FixedLengthReader(const std::string& path, const FixedLengthOptions& options);
  FixedLengthReader(ByteReader reader, const FixedLengthOptions& options);

  bool next();                                         ///< false at the end
  std::string_view record() const { return record_; }  ///< valid until the next call
  std::uint64_t skip(std::uint64_t count);             ///< past how many records it went; seeks in a plain file

  RecordPosition position() const { return {next_record_, reader_.offset(), 0}; }
  void restore(const RecordPosition& position);
  const std::string& path() const { return reader_.path(); }

 private:
  void check_size();
  void skip_header();
  void add_place(Error& error) const;
  [[noreturn]] void cut_off(std::uint64_t left) const;

  ByteReader reader_;
  FixedLengthOptions options_;
  std::uint64_t next_record_ = 0;
  std::string_view record_;
};

}  // namespace lockstep::data
