#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/data/format/tfrecord.h"
#include "tests/fuzz/target.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

// Reads to the end or to the first error; both ways through a file must find the same number of records.
void read(std::string_view bytes, Compression compression, OnDamage on_damage, std::size_t buffer) {
  const TFRecordOptions options{
      .compression = compression, .on_damage = on_damage, .max_record_bytes = 1 << 16, .buffer_bytes = buffer};
  std::uint64_t records = 0;
  RecordPosition last;
  try {
    TFRecordReader reader(ByteReader::over_memory("fuzz", bytes, compression, buffer), options);
    while (reader.next()) {
      ++records;
      last = reader.record_position();
    }
    if (records > 0) {
      reader.restore(last);
      fuzz_check(reader.next(), "a record that was there is there again");
      fuzz_check(reader.record_position() == last, "at the same place");
    }
  } catch (const Error&) {
    return;
  }
  TFRecordReader reader(ByteReader::over_memory("fuzz", bytes, compression, buffer), options);
  fuzz_check(reader.skip(~std::uint64_t{0}) == records, "skip counts what next reads");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr Compression kKinds[] = {Compression::None, Compression::Zlib, Compression::Gzip};
  const auto compression = kKinds[data[0] % 3];
  const auto on_damage = (data[0] & 4) != 0 ? OnDamage::Skip : OnDamage::Fail;
  const std::size_t buffer = (data[0] & 8) != 0 ? 17 : 4096;
  read({reinterpret_cast<const char*>(data) + 1, size - 1}, compression, on_damage, buffer);
  return 0;
}
