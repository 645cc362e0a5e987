#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/data/format/byte_reader.h"
#include "lockstep/data/format/reader_options.h"

namespace lockstep::data {

/// A place between two records of a file; all count from 0. Offsets count decompressed bytes.
struct RecordPosition {
  std::uint64_t record = 0;  ///< records before it
  std::uint64_t offset = 0;  ///< bytes before it, after decompression
  std::uint64_t line = 0;    ///< only in CSV files, where a record may span lines

  bool operator==(const RecordPosition&) const = default;
};

/// Reads the records of one file in order. Each format adds how a record is found.
///
///     TFRecordReader reader("train.tfrecord");
///     while (reader.next()) use(reader.record());
///
/// Not for several threads at once.
class LOCKSTEP_EXPORT RecordReader {
 public:
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;
  virtual ~RecordReader();

  /// Goes to the next record; false at the end. DataLoss if the record is damaged.
  bool next() {
    record_ = {};
    return with_place([this] { return read_record(); });
  }

  /// The bytes of the record, valid until the next call. A CSV record has `values()` instead.
  std::string_view record() const { return record_; }

  /// Goes past up to `count` records and returns past how many.
  std::uint64_t skip(std::uint64_t count) {
    record_ = {};
    return with_place([&] { return skip_records(count); });
  }

  /// After an error: goes past the record that caused it. False if its end, and so the rest of the file, cannot be
  /// found.
  virtual bool pass_over() { return false; }

  /// Whether `skip` jumps to its goal: then no record on the way can fail, and the end is as near as any record.
  virtual bool jumps() const { return false; }

  /// What was left out so far, to be logged when the file has been read; empty if nothing was.
  virtual std::string losses() const { return {}; }

  /// Where the next record will be looked for; `restore` goes there again, also in another reader of the same file.
  RecordPosition position() const { return {next_record_, reader_.offset(), line_}; }
  void restore(const RecordPosition& position);
  const std::string& path() const { return reader_.path(); }

 protected:
  explicit RecordReader(ByteReader reader) : reader_(std::move(reader)) {}

  /// Reads the next record; false at the end.
  virtual bool read_record() = 0;
  /// Drops what was made of the record at hand, whose bytes are about to go.
  virtual void forget_record() {}
  virtual std::uint64_t skip_records(std::uint64_t count);

  /// "record 3 at byte 57 of a.tfrecord": the record at hand, for errors.
  virtual std::string place() const;

  /// Adds the place to errors of the compression, which knows no records.
  template <class F>
  std::invoke_result_t<F&> with_place(F&& read) {
    try {
      return read();
    } catch (DataLoss& error) {
      if (error.number() == errors::kCompression) error.add_where(place());
      throw;
    }
  }

  ByteReader reader_;
  std::uint64_t next_record_ = 0;
  std::uint64_t line_ = 0;
  std::string_view record_;
};

}  // namespace lockstep::data
