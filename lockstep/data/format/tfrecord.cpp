#include "lockstep/data/format/tfrecord.h"

#include <bit>
#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/file_error.h"

namespace lockstep::data {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie in the file");

// u64 length, u32 masked crc of it; the payload; u32 masked crc of the payload.
constexpr std::size_t kHeader = 12;
constexpr std::size_t kFooter = 4;

template <class T>
T load(const char* from) {
  T value{};
  std::memcpy(&value, from, sizeof value);
  return value;
}

bool header_is_right(const char* header) { return mask_crc32c(crc32c({header, 8})) == load<std::uint32_t>(header + 8); }

}  // namespace

// Whether a record of this length may follow a header that starts `before` bytes ahead of the current position. Never
// allocates: memory is only allocated for bytes that exist.
bool TFRecordReader::fits(std::uint64_t length, std::size_t before) const {
  if (length > options_.max_record_bytes) return false;
  const auto remaining = reader_.remaining();
  return !remaining || (*remaining >= before + kHeader + kFooter && length <= *remaining - before - kHeader - kFooter);
}

void TFRecordReader::fail(const std::string& what, const std::string& seen) const {
  const bool may_be_compressed = record_start_.offset == 0 && options_.compression == Compression::None;
  throw DataLoss(errors::kRecord,
                 {.what = str(path(), " holds a damaged record: ", what),
                  .where = place(),
                  .seen = seen,
                  .help = str(may_be_compressed ? "set `compression` if the file is compressed; otherwise " : "",
                              "write the file again, or leave damaged records out with OnDamage::Skip")});
}

// Reads the record that starts here; false at the end of the file. Does not advance past a damaged one.
bool TFRecordReader::take_record(bool check_payload) {
  std::string_view bytes = reader_.peek(kHeader);
  if (bytes.empty()) return false;
  if (bytes.size() < kHeader)
    fail("the file ends inside a record's header",
         str(counted(static_cast<long long>(bytes.size()), "byte"), " of 12: ", hex_bytes(bytes)));
  if (!header_is_right(bytes.data()))
    fail("the checksum of its length is wrong", str("header ", hex_bytes(bytes, kHeader)));
  const auto length = load<std::uint64_t>(bytes.data());
  const bool buffered = bytes.size() >= kHeader + kFooter && length <= bytes.size() - kHeader - kFooter;
  if ((!buffered || length > options_.max_record_bytes) && !fits(length, 0)) {
    const auto remaining = reader_.remaining();
    fail("it claims to be longer than it can be",
         str("length ", length, ", ",
             remaining && *remaining < length + kHeader + kFooter
                 ? str("but the file has ", *remaining, " bytes from the record's start on")
                 : str("more than max_record_bytes = ", options_.max_record_bytes)));
  }
  const auto whole = static_cast<std::size_t>(kHeader + length + kFooter);
  if (!check_payload) {
    ++next_record_;
    if (const std::uint64_t skipped = reader_.skip(whole); skipped < whole)
      fail("the file ends inside it", str("length ", length, ", but ", skipped - kHeader, " bytes were left"));
    return true;
  }
  if (!buffered) bytes = reader_.peek(whole);
  if (bytes.size() < whole)
    fail("the file ends inside it", str("length ", length, ", but ", bytes.size() - kHeader, " bytes are left"));
  const auto stored = load<std::uint32_t>(bytes.data() + kHeader + length);
  const auto real = mask_crc32c(crc32c(bytes.substr(kHeader, length)));
  if (stored != real) {
    damaged_size_ = whole;
    fail("the checksum of its bytes is wrong",
         str("masked crc32c ", stored, " in the file, ", real, " by its ", length, " bytes"));
  }
  record_ = bytes.substr(kHeader, length);
  reader_.consume(whole);
  ++next_record_;
  return true;
}

// Skips at least one byte, then looks for a header. Linear in the size of the file, whatever it contains.
void TFRecordReader::find_next_header() {
  reader_.consume(1);
  for (;;) {
    const std::string_view bytes = reader_.peek(kHeader);
    if (bytes.size() < kHeader) {
      reader_.consume(bytes.size());
      return;
    }
    const std::size_t candidates = bytes.size() - kHeader + 1;
    for (std::size_t i = 0; i < candidates; ++i) {
      if (header_is_right(bytes.data() + i) && fits(load<std::uint64_t>(bytes.data() + i), i)) {
        reader_.consume(i);
        return;
      }
    }
    reader_.consume(candidates);
  }
}

bool TFRecordReader::advance(bool check_payload) {
  for (;;) {
    record_start_ = position();
    damaged_size_ = 0;
    try {
      return take_record(check_payload);
    } catch (const DataLoss& error) {
      if (options_.on_damage == OnDamage::Fail || error.number() != errors::kRecord) throw;
      last_damage_ = error.what();
    }
    ++damaged_;
    ++next_record_;
    if (damaged_size_ > 0) {
      reader_.consume(damaged_size_);
    } else {
      find_next_header();
    }
  }
}

std::uint64_t TFRecordReader::skip_records(std::uint64_t count) {
  std::uint64_t skipped = 0;
  while (skipped < count && advance(options_.on_damage == OnDamage::Skip)) ++skipped;
  record_ = {};
  return skipped;
}

std::string TFRecordReader::place() const { return record_place(record_start_.record, record_start_.offset, path()); }

std::string TFRecordReader::losses() const {
  if (damaged_ == 0) return {};
  return str(path(), ": left out ", counted(static_cast<long long>(damaged_), "damaged record"), "; the last:\n",
             last_damage_);
}

void TFRecordWriter::write(std::string_view record) {
  const auto bytes_of = [](const auto& number) {
    return std::string_view(reinterpret_cast<const char*>(&number), sizeof number);
  };
  const std::uint64_t length = record.size();
  out_.append(bytes_of(length));
  out_.append(bytes_of(mask_crc32c(crc32c(bytes_of(length)))));
  out_.append(record);
  out_.append(bytes_of(mask_crc32c(crc32c(record))));
  ++records_;
}

}  // namespace lockstep::data
