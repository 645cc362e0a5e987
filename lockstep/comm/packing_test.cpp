#include "lockstep/comm/packing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/dtype.h"
#include "tests/support/golden.h"

namespace lockstep {
namespace {

using nlohmann::json;

Dtype dtype_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(Dtype::Float64); ++i) {
    if (to_string(static_cast<Dtype>(i)) == name) return static_cast<Dtype>(i);
  }
  throw std::runtime_error("unknown dtype " + name);
}

Implementation implementation_of(const json& value) {
  return value.is_string() ? parse_implementation(value.get<std::string>()) : Implementation{value.get<int>()};
}

std::optional<double> seconds_of(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

CommunicationOptions options_of(const json& list) {
  return validated({.bytes_per_pack = list[0].get<std::int64_t>(),
                    .timeout_seconds = seconds_of(list[1]),
                    .implementation = implementation_of(list[2])});
}

json listed(const CommunicationOptions& options) {
  return {options.bytes_per_pack, options.timeout_seconds ? json(*options.timeout_seconds) : json(nullptr),
          std::string(to_string(options.implementation))};
}

json call(const golden::Case& given) {
  const auto method = given["method"].get<std::string>();
  if (method == "group_by_size") {
    std::vector<std::size_t> bytes;
    for (const auto& tensor : given["tensors"]) {
      bytes.push_back(tensor.at("elements").get<std::size_t>() * size_of(dtype_named(tensor.at("dtype"))));
    }
    return {{"packs", group_by_size(bytes, given["bytes_per_pack"].get<std::int64_t>())}};
  }
  if (method == "concat_and_split") {
    return {{"sizes",
             concat_and_split_sizes(given["sizes"].get<std::vector<std::size_t>>(), given["num_packs"].get<int>())}};
  }
  if (method == "constructor") {
    check_num_packs(given["num_packs"].get<int>());
    return {{"ok", true}};
  }
  if (method == "options") {
    return {
        {"options", listed(options_of({given["bytes_per_pack"], given["timeout_seconds"], given["implementation"]}))}};
  }
  if (method == "options_merge") {
    return {{"options", listed(merge(options_of(given["base"]), options_of(given["other"])))}};
  }
  throw std::runtime_error("unknown method " + method);
}

class PackGolden : public ::testing::TestWithParam<golden::Case> {};

TEST_P(PackGolden, MatchesTensorFlow) {
  json result;
  if (golden::succeeds_as_expected(GetParam(), [&] { result = call(GetParam()); })) {
    EXPECT_EQ(result, GetParam().expect());
  }
}

INSTANTIATE_TEST_SUITE_P(, PackGolden, ::testing::ValuesIn(golden::cases("pack")), golden::name);

TEST(GroupBySize, EndsAPackOnlyAfterItIsLargerThanTheLimit) {
  EXPECT_EQ(group_by_size({100, 100, 100, 100}, 200), (Packs{{0, 1, 2}, {3}}));
  EXPECT_EQ(group_by_size({300, 100, 100}, 200), (Packs{{0}, {1, 2}}));
  EXPECT_EQ(group_by_size({100, 300, 100}, 200), (Packs{{0, 1}, {2}}));
  EXPECT_EQ(group_by_size({0, 0, 0}, 1), (Packs{{0, 1, 2}}));
  EXPECT_EQ(group_by_size({}, 1), Packs{});
  EXPECT_THROW(group_by_size({1}, -1), InvalidArgument);
}

TEST(NumPacks, MayBeZeroButNotNegative) {
  EXPECT_NO_THROW(check_num_packs(0));
  EXPECT_NO_THROW(check_num_packs(3));
  EXPECT_THROW(check_num_packs(-1), InvalidArgument);
}

TEST(ConcatAndSplit, GivesTheRestToTheLastPiece) {
  using Sizes = std::vector<std::size_t>;
  EXPECT_EQ(concat_and_split_sizes({5, 5}, 3), (Sizes{3, 3, 4}));
  EXPECT_EQ(concat_and_split_sizes({2}, 4), (Sizes{0, 0, 0, 2}));
  EXPECT_EQ(concat_and_split_sizes({}, 2), (Sizes{0, 0}));
  EXPECT_THROW(concat_and_split_sizes({5}, 0), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
