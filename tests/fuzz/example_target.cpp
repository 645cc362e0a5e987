#include <array>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/format/example.h"
#include "lockstep/data/format/example_parser.h"
#include "tests/fuzz/target.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

const ExampleParser& parser() {
  static const ExampleParser instance({{"f", FixedLenFeature{FeatureType::Float, {3}, std::vector<float>{0}}},
                                       {"i", VarLenFeature{FeatureType::Int64}},
                                       {"s", FixedLenFeature{FeatureType::Bytes, {}, std::vector<std::string>{"d"}}},
                                       {"v", VarLenFeature{FeatureType::Float}},
                                       {"w", VarLenFeature{FeatureType::Bytes}}});
  return instance;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A copy of the exact size, so that a sanitizer detects every byte too many.
  const std::vector<char> exact(data, data + size);
  const std::string_view record(exact.data(), exact.size());
  bool readable = true;
  try {
    const Example example = read_example(record);
    const std::string written = write_example(example);
    // By the bytes rather than the values, which may include NaN.
    fuzz_check(write_example(read_example(written)) == written, "what was written can be read");
  } catch (const Error&) {
    readable = false;
  }
  std::array<float, 3> floats{};
  std::string_view text;
  std::array<VarLenValues, 3> variable;
  const std::array<FeatureSlot, 5> slots{{{.floats = floats.data()},
                                          {.variable = &variable[0]},
                                          {.bytes = &text},
                                          {.variable = &variable[1]},
                                          {.variable = &variable[2]}}};
  try {
    parser().parse(record, slots);
    std::size_t sum = text.size();
    for (const char c : text) sum += static_cast<unsigned char>(c);
    for (const std::string_view each : variable[2].bytes) sum += each.size();
    fuzz_check(sum + 1 > 0, "the views can be read");
    fuzz_check(variable[0].lengths.at(0) == static_cast<std::int64_t>(variable[0].ints.size()), "lengths fit values");
  } catch (const DataLoss&) {
    fuzz_check(!readable, "a record that can be read whole can be read in part");
  } catch (const InvalidArgument&) {
    // Another type or number of values than requested.
  }
  return 0;
}
