#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/data/format/byte_writer.h"
#include "lockstep/data/format/record_reader.h"

namespace lockstep::data {

/// Reads the records of a TFRecord file in order. An empty file has no records.
class LOCKSTEP_EXPORT TFRecordReader final : public RecordReader {
 public:
  explicit TFRecordReader(const std::string& path, const TFRecordOptions& options = {})
      : TFRecordReader(ByteReader(path, options.compression, options.buffer_bytes), options) {}
  TFRecordReader(ByteReader reader, const TFRecordOptions& options)
      : RecordReader(std::move(reader)), options_(options) {}

  const RecordPosition& record_position() const { return record_start_; }  ///< where record() starts

  bool pass_over() override { return skip(1) == 1; }  ///< possible if only the record's bytes are damaged
  std::string losses() const override;

  std::uint64_t damaged() const { return damaged_; }               ///< places skipped by OnDamage::Skip
  const std::string& last_damage() const { return last_damage_; }  ///< describes the last of them

 private:
  bool read_record() override { return advance(true); }
  /// Checks only lengths, unless damaged records are skipped: then records must be verified to be counted.
  std::uint64_t skip_records(std::uint64_t count) override;
  std::string place() const override;

  bool advance(bool check_payload);
  bool take_record(bool check_payload);
  bool fits(std::uint64_t length, std::size_t before) const;
  void find_next_header();
  [[noreturn]] void fail(const std::string& what, const std::string& seen) const;

  TFRecordOptions options_;
  RecordPosition record_start_;
  std::size_t damaged_size_ = 0;  // size of a damaged record with an intact length
  std::uint64_t damaged_ = 0;
  std::string last_damage_;
};

/// Writes a TFRecord file. `close` reports errors; without it they are only logged.
class LOCKSTEP_EXPORT TFRecordWriter {
 public:
  /// `level` of compression: 0 to 9, or -1 for zlib's usual one.
  explicit TFRecordWriter(std::string path, Compression compression = Compression::None, int level = -1)
      : out_(std::move(path), compression, level) {}

  /// Adds a record.
  void write(std::string_view record);
  /// Makes all records so far visible to readers of the file.
  void flush() { out_.flush(); }
  /// Writes what is left and closes the file.
  void close() { out_.close(); }
  /// Records written so far.
  std::uint64_t records() const { return records_; }

 private:
  ByteWriter out_;
  std::uint64_t records_ = 0;
};

}  // namespace lockstep::data
