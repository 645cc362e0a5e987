#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"
#include "lockstep/data/format/byte_reader.h"
#include "lockstep/data/format/byte_writer.h"
#include "lockstep/data/format/record_position.h"

namespace lockstep::data {

/// What a reader does with a damaged record.
enum class OnDamage {
  Fail,  ///< DataLoss with file, record and offset
  /// Leaves the record out and counts it. If its length is still right, reading goes on right behind it; otherwise at
  /// the next place whose 12 bytes are a length that fits into the file and its checksum. Damaged compression always
  /// fails: nothing behind it can be read.
  Skip,
};

struct TFRecordOptions {
  Compression compression = Compression::None;
  OnDamage on_damage = OnDamage::Fail;
  /// A longer record is taken for damage. Uncompressed files bound their records by their own size too.
  std::uint64_t max_record_bytes = std::uint64_t{1} << 30;
  std::size_t buffer_bytes = ByteReader::kDefaultBuffer;
};

/// Reads the records of a TFRecord file in order.
///
///     TFRecordReader reader("train.tfrecord");
///     while (reader.next()) use(reader.record());
///
/// A file without bytes has no records. Not for several threads at once.
class LOCKSTEP_EXPORT TFRecordReader {
 public:
  explicit TFRecordReader(const std::string& path, const TFRecordOptions& options = {});
  TFRecordReader(ByteReader reader, const TFRecordOptions& options);

  /// Goes to the next record; false at the end. DataLoss if the record is damaged.
  bool next();

  std::string_view record() const { return record_; }                      ///< valid until the next call
  const RecordPosition& record_position() const { return record_start_; }  ///< where record() starts

  /// Goes past up to `count` records and returns past how many. Only lengths are checked, unless damaged records are
  /// left out: then the ones that count have to be told from those that do not.
  std::uint64_t skip(std::uint64_t count);

  /// Where the next record will be looked for; `restore` goes there again, also in another reader of the same file.
  RecordPosition position() const { return {next_record_, reader_.offset()}; }
  void restore(const RecordPosition& position);

  std::uint64_t damaged() const { return damaged_; }               ///< places left out by OnDamage::Skip
  const std::string& last_damage() const { return last_damage_; }  ///< what was wrong with the last of them
  const std::string& path() const { return reader_.path(); }

 private:
  struct Frame {
    enum class State { End, Good, BadPayload, Lost } state;
    std::uint64_t length = 0;
  };

  bool advance(bool check_payload);
  Frame find_frame(bool check_payload);
  bool fits(std::uint64_t length, std::size_t before) const;
  void find_next_header();
  Frame damage(Frame::State state, std::uint64_t length, const std::string& what, const std::string& seen);

  ByteReader reader_;
  TFRecordOptions options_;
  std::uint64_t next_record_ = 0;
  RecordPosition record_start_;
  std::string_view record_;
  std::uint64_t damaged_ = 0;
  std::string last_damage_;
};

/// Writes a TFRecord file. `close` tells of errors; without it they are only logged.
class LOCKSTEP_EXPORT TFRecordWriter {
 public:
  explicit TFRecordWriter(std::string path, Compression compression = Compression::None, int level = -1);

  void write(std::string_view record);
  void flush() { out_.flush(); }
  void close() { out_.close(); }
  std::uint64_t records() const { return records_; }

 private:
  ByteWriter out_;
  std::uint64_t records_ = 0;
};

}  // namespace lockstep::data
