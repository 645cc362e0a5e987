#include "lockstep/data/format/fixed_length.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/file_error.h"

namespace lockstep::data {
namespace {

// Far above any record; sums of three such sizes do not overflow.
constexpr std::uint64_t kMost = std::uint64_t{1} << 40;

}  // namespace

void require_valid(const FixedLengthOptions& options) {
  if (options.record_bytes > 0 && std::max({options.record_bytes, options.header_bytes, options.footer_bytes}) <= kMost)
    return;
  throw InvalidArgument(errors::kBadOption,
                        {.what = "records of a fixed length need at least 1 byte each, header and footer at most 2^40",
                         .seen = str("record_bytes = ", options.record_bytes, ", header_bytes = ", options.header_bytes,
                                     ", footer_bytes = ", options.footer_bytes)});
}

FixedLengthReader::FixedLengthReader(const std::string& path, const FixedLengthOptions& options)
    : FixedLengthReader(ByteReader(path, options.compression, options.buffer_bytes), options) {}

FixedLengthReader::FixedLengthReader(ByteReader reader, const FixedLengthOptions& options)
    : reader_(std::move(reader)), options_(options) {
  require_valid(options);
  check_size();
  skip_header();
}

void FixedLengthReader::skip_header() try {
  if (const auto got = reader_.skip(options_.header_bytes); got < options_.header_bytes) cut_off(got);
} catch (DataLoss& error) {
  add_place(error);
  throw;
}

/// Of damaged compression, which knows no records.
void FixedLengthReader::add_place(Error& error) const {
  if (error.number() == errors::kCompression) error.add_where(record_place(next_record_, reader_.offset(), path()));
}

void FixedLengthReader::check_size() {
  const auto size = reader_.remaining();
  if (!size) return;
  const std::uint64_t around = options_.header_bytes + options_.footer_bytes;
  if (*size >= around && (*size - around) % options_.record_bytes == 0) return;
  const std::uint64_t records = *size >= around ? (*size - around) / options_.record_bytes : 0;
  throw DataLoss(errors::kRecord,
                 {.what = str(path(), " holds no whole number of records"),
                  .where = record_place(records, options_.header_bytes + records * options_.record_bytes, path()),
                  .seen = str("the file has ", *size, " bytes: header ", options_.header_bytes, ", footer ",
                              options_.footer_bytes, ", records of ", options_.record_bytes),
                  .help = "look at record_bytes, header_bytes and footer_bytes, or make the file again"});
}

void FixedLengthReader::cut_off(std::uint64_t left) const {
  throw DataLoss(errors::kRecord,
                 {.what = str(path(), " ends inside of a record, its header or its footer"),
                  .where = record_place(next_record_, reader_.offset(), path()),
                  .seen = str(left, " bytes are left of records of ", options_.record_bytes, " and a footer of ",
                              options_.footer_bytes),
                  .help = "look at record_bytes, header_bytes and footer_bytes, or make the file again"});
}

void FixedLengthReader::restore(const RecordPosition& position) {
  reader_.seek(position.offset);
  next_record_ = position.record;
}

bool FixedLengthReader::next() try {
  record_ = {};
  // The footer is known by what does not follow it.
  const std::uint64_t wanted = options_.record_bytes + options_.footer_bytes;
  const std::string_view bytes = reader_.peek(static_cast<std::size_t>(wanted));
  if (bytes.size() >= wanted) {
    record_ = bytes.substr(0, static_cast<std::size_t>(options_.record_bytes));
    reader_.consume(record_.size());
    ++next_record_;
    return true;
  }
  if (bytes.size() != options_.footer_bytes) cut_off(bytes.size());
  return false;
} catch (DataLoss& error) {
  add_place(error);
  throw;
}

std::uint64_t FixedLengthReader::skip(std::uint64_t count) {
  record_ = {};
  if (const auto left = reader_.remaining()) {
    const std::uint64_t records = (*left - std::min(*left, options_.footer_bytes)) / options_.record_bytes;
    const std::uint64_t skipped = std::min(count, records);
    reader_.skip(skipped * options_.record_bytes);
    next_record_ += skipped;
    return skipped;
  }
  std::uint64_t skipped = 0;
  while (skipped < count && next()) ++skipped;
  record_ = {};
  return skipped;
}

}  // namespace lockstep::data
