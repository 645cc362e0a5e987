#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/format/safetensors.h"
#include "tests/fuzz/target.h"

using namespace lockstep;
using namespace lockstep::data;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<char> exact(data, data + size);
  const std::string_view file(exact.data(), exact.size());
  try {
    const SafetensorsHeader header = parse_safetensors(file, "fuzz");
    std::uint64_t next = 0;
    std::vector<SafetensorsTensor> tensors;
    for (const SafetensorsEntry& entry : header.tensors) {
      fuzz_check(entry.begin == next && entry.end >= entry.begin, "tensors follow each other");
      next = entry.end;
      std::uint64_t bytes = item_size(entry.type);
      for (const std::int64_t extent : entry.shape) bytes *= static_cast<std::uint64_t>(extent);
      fuzz_check(bytes == entry.end - entry.begin, "sizes fit shapes");
      tensors.push_back({entry.name, entry.type, entry.shape,
                         file.substr(header.data_offset + entry.begin, entry.end - entry.begin)});
    }
    fuzz_check(header.data_offset + next == size, "all bytes belong to tensors");
    sort_for_safetensors(tensors);
    std::string written = safetensors_header(tensors, header.metadata);
    fuzz_check(written.size() % 8 == 0, "headers are padded");
    for (const SafetensorsTensor& tensor : tensors) written += tensor.bytes;
    const SafetensorsHeader again = parse_safetensors(written, "written");
    fuzz_check(again.metadata == header.metadata, "metadata can be read again");
    fuzz_check(again.tensors.size() == header.tensors.size(), "tensors can be read again");
  } catch (const Error&) {
    // Damaged or unsupported.
  }
  return 0;
}
