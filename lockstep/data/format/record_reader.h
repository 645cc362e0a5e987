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

/// A position between two records of a file; all fields count from 0. Offsets count decompressed bytes.
struct RecordPosition {
  std::uint64_t record = 0;  ///< records before it
  std::uint64_t offset = 0;  ///< bytes before it, after decompression
  std::uint64_t line = 0;    ///< only in CSV files, where a record may span lines

  bool operator==(const RecordPosition&) const = default;
};

/// Reads the records of one file in order. Each format overrides how a record is found.
///
///     TFRecordReader reader("train.tfrecord");
///     while (reader.next()) use(reader.record());
///
/// Not thread-safe.
class LOCKSTEP_EXPORT RecordReader {
 public:
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;
  virtual ~RecordReader();

  /// Advances to the next record; false at the end. DataLoss if the record is damaged.
  bool next() {
    record_ = {};
    return with_place([this] { return read_record(); });
  }

  /// The bytes of the record, valid until the next call. A CSV record has `values()` instead.
  std::string_view record() const { return record_; }

  /// Skips up to `count` records; returns how many it skipped.
  std::uint64_t skip(std::uint64_t count) {
    record_ = {};
    return with_place([&] { return skip_records(count); });
  }

  /// After an error: skips the record that caused it. False if its end, and so the rest of the file, cannot be found.
  virtual bool pass_over() { return false; }

  /// Whether `skip` seeks: then no skipped record can fail, and skipping to the end is as cheap as to any record.
  virtual bool jumps() const { return false; }

  /// Reports what was skipped so far, to be logged after the last record; empty if nothing was.
  virtual std::string losses() const { return {}; }

  /// Where the next record starts; `restore` returns there, also in another reader of the same file.
  RecordPosition position() const { return {next_record_, reader_.offset(), line_}; }
  void restore(const RecordPosition& position);
  const std::string& path() const { return reader_.path(); }

 protected:
  explicit RecordReader(ByteReader reader) : reader_(std::move(reader)) {}

  /// Reads the next record; false at the end.
  virtual bool read_record() = 0;
  /// Drops state that refers to the current record, whose bytes are about to be freed.
  virtual void forget_record() {}
  virtual std::uint64_t skip_records(std::uint64_t count);

  /// "record 3 at byte 57 of a.tfrecord": the current record, for errors.
  virtual std::string place() const;

  /// Adds the record's place to decompression errors, which do not know it.
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
