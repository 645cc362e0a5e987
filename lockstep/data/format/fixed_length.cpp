#include "lockstep/data/format/fixed_length.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/data/format/file_error.h"

namespace lockstep::data {

void require_valid(const FixedLengthOptions& options) {
  // Far above any record; sums of three such sizes do not overflow.
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  const std::uint64_t largest = std::max({options.record_bytes, options.header_bytes, options.footer_bytes});
  if (options.record_bytes > 0 && largest <= kMost) return;
  throw InvalidArgument(errors::kBadOption,
                        {.what = options.record_bytes == 0 ? std::string("record_bytes must be >= 1, got 0")
                                                           : str("sizes must be <= 2^40, got ", largest),
                         .seen = str("record_bytes = ", options.record_bytes, ", header_bytes = ", options.header_bytes,
                                     ", footer_bytes = ", options.footer_bytes),
                         .help = "set FixedLengthOptions::record_bytes to the size of one record"});
}

FixedLengthReader::FixedLengthReader(ByteReader reader, const FixedLengthOptions& options)
    : RecordReader(std::move(reader)), options_(options) {
  require_valid(options);
  check_size();
  const std::uint64_t got = with_place([this] { return reader_.skip(options_.header_bytes); });
  if (got < options_.header_bytes) cut_off(" ends inside its header", place(), str("it has ", got, " bytes"));
}

void FixedLengthReader::cut_off(const std::string& what, const std::string& where, const std::string& seen) const {
  throw DataLoss(errors::kRecord,
                 {.what = str(path(), what),
                  .where = where,
                  .seen = str(seen, "; header ", options_.header_bytes, ", footer ", options_.footer_bytes,
                              ", records of ", options_.record_bytes),
                  .help = "check record_bytes, header_bytes and footer_bytes, or write the file again"});
}

void FixedLengthReader::check_size() const {
  const auto size = reader_.remaining();
  if (!size) return;
  const std::uint64_t around = options_.header_bytes + options_.footer_bytes;
  const std::uint64_t content = *size - std::min(*size, around);
  if (*size >= around && content % options_.record_bytes == 0) return;
  const std::uint64_t records = content / options_.record_bytes;
  cut_off(" does not hold a whole number of records",
          record_place(records, options_.header_bytes + records * options_.record_bytes, path()),
          str("the file has ", *size, " bytes"));
}

bool FixedLengthReader::read_record() {
  // The footer is recognized by the end of the file after it.
  const std::uint64_t wanted = options_.record_bytes + options_.footer_bytes;
  const std::string_view bytes = reader_.peek(static_cast<std::size_t>(wanted));
  if (bytes.size() < wanted) {
    if (bytes.size() == options_.footer_bytes) return false;
    cut_off(" ends inside a record or its footer", place(), str(bytes.size(), " bytes are left"));
  }
  record_ = bytes.substr(0, static_cast<std::size_t>(options_.record_bytes));
  reader_.consume(record_.size());
  ++next_record_;
  return true;
}

std::uint64_t FixedLengthReader::skip_records(std::uint64_t count) {
  const auto left = reader_.remaining();
  if (!left) return RecordReader::skip_records(count);
  const std::uint64_t records = (*left - std::min(*left, options_.footer_bytes)) / options_.record_bytes;
  const std::uint64_t skipped = std::min(count, records);
  reader_.skip(skipped * options_.record_bytes);
  next_record_ += skipped;
  return skipped;
}

}  // namespace lockstep::data
