#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/format/csv.h"
#include "tests/fuzz/target.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

using Rows = std::vector<std::vector<std::string>>;

// All records as text, read through a buffer of this size; `failed` tells whether an error ended it.
Rows read(std::string_view text, CsvOptions options, std::size_t buffer, bool& failed) {
  Rows rows;
  failed = false;
  try {
    CsvReader reader(ByteReader::over_memory("fuzz", text, Compression::None, buffer), std::move(options));
    while (reader.next()) {
      auto& row = rows.emplace_back();
      for (const CsvValue& value : reader.values()) {
        if (const auto* content = std::get_if<std::string_view>(&value)) row.emplace_back(*content);
      }
    }
  } catch (const Error&) {
    failed = true;
  }
  return rows;
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
  bool failed = false;
  bool failed_again = false;
  const Rows rows = read(text, options, 4096, failed);
  fuzz_check(read(text, options, 3, failed_again) == rows && failed == failed_again, "the buffer does not matter");
  const CsvOptions plain{.header = false};
  bool broken = false;
  fuzz_check(read(written(rows), plain, 64, broken) == rows && !broken, "records can be written and read");
  // Values of other types; which errors there are does not matter.
  options.columns = {
      {.type = CsvType::Int32, .default_value = "1"}, {CsvType::Float32}, {CsvType::Float64}, {CsvType::Int64}};
  read(text, options, 64, failed);
  return 0;
}
