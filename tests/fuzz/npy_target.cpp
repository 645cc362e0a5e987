#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/format/npy.h"
#include "tests/fuzz/target.h"

using namespace lockstep;
using namespace lockstep::data;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<char> exact(data, data + size);
  try {
    const NpyHeader header = parse_npy_header({exact.data(), exact.size()}, "fuzz");
    fuzz_check(header.data_offset <= size, "data starts within the file or at its end");
    fuzz_check(header.elements * item_size(header.type) == header.data_bytes, "sizes fit");
    const std::string written = npy_header(header.type, header.shape, header.fortran_order);
    const NpyHeader again = parse_npy_header(written, "written");
    fuzz_check(again.shape == header.shape && again.type == header.type && again.fortran_order == header.fortran_order,
               "what was written can be read");
    fuzz_check(again.data_offset == written.size() && written.size() % 64 == 0, "headers are padded");
  } catch (const Error&) {
    // Damaged or unsupported.
  }
  return 0;
}
