#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/format/csv.h"
#include "tests/fuzz/target.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

using Rows = std::vector<std::vector<std::string>>;

// The contents of a file at each place.
struct Found {
  Rows rows;
  std::vector<std::size_t> failed;  // the numbers of the records that failed
  bool opened = false;
  bool reached_end = false;
  bool operator==(const Found&) const = default;
};

// All records as text, read through a buffer of this size; broken ones are skipped.
Found read(std::string_view text, CsvOptions options, std::size_t buffer) {
  Found found;
  std::optional<CsvReader> reader;
  try {
    reader.emplace(ByteReader::over_memory("fuzz", text, Compression::None, buffer), std::move(options));
    found.opened = true;
  } catch (const Error&) {
    return found;
  }
  for (std::size_t place = 0;; ++place) {
    const std::uint64_t start = reader->position().offset;
    try {
      if (!reader->next()) break;
      auto& row = found.rows.emplace_back();
      for (const CsvValue& value : reader->values()) {
        if (const auto* content = std::get_if<std::string_view>(&value)) row.emplace_back(*content);
      }
    } catch (const Error&) {
      found.failed.push_back(place);
      if (!reader->pass_over()) return found;
    }
    fuzz_check(reader->position().offset > start, "every record takes some bytes");
    fuzz_check(reader->position().record == place + 1, "every record counts, also one that fails");
  }
  found.reached_end = true;
  return found;
}

std::string written(const Rows& rows) {
  std::string out;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) out += ',';
      out += '"';
      for (const char c : row[i]) out += c == '"' ? std::string("\"\"") : std::string(1, c);
      out += '"';
    }
    out += "\r\n";
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::vector<char> exact(data + 1, data + size);
  const std::string_view text(exact.data(), exact.size());
  CsvOptions options{.header = (data[0] & 1) != 0, .max_record_bytes = 1 << 16};
  const Found found = read(text, options, 4096);
  fuzz_check(read(text, options, 3) == found, "the buffer does not matter");
  const CsvOptions plain{.header = false};
  const Found again = read(written(found.rows), plain, 64);
  fuzz_check(again.rows == found.rows && again.failed.empty() && again.reached_end, "records can be written and read");
  // Values of other types; which errors occur does not matter.
  options.columns = {
      {.type = CsvType::Int32, .default_value = "1"}, {CsvType::Float32}, {CsvType::Float64}, {CsvType::Int64}};
  read(text, options, 64);
  return 0;
}
