#include "lockstep/data/format/record_reader.h"

#include "lockstep/data/format/file_error.h"

namespace lockstep::data {

RecordReader::~RecordReader() = default;

void RecordReader::restore(const RecordPosition& position) {
  record_ = {};
  forget_record();
  reader_.seek(position.offset);
  next_record_ = position.record;
  line_ = position.line;
}

std::uint64_t RecordReader::skip_records(std::uint64_t count) {
  std::uint64_t skipped = 0;
  while (skipped < count && read_record()) ++skipped;
  record_ = {};
  return skipped;
}

std::string RecordReader::place() const { return record_place(next_record_, reader_.offset(), path()); }

}  // namespace lockstep::data
