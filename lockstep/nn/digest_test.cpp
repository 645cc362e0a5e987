#include "lockstep/nn/digest.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep {
namespace {

TEST(DigestBytes, EveryBitCountsAtEveryLength) {
  for (const std::size_t size : {1u, 7u, 8u, 31u, 32u, 33u, 64u, 100u}) {
    std::vector<unsigned char> bytes(size, 0x5a);
    std::set<std::uint64_t> seen{digest_bytes(bytes.data(), size)};
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
      EXPECT_TRUE(seen.insert(digest_bytes(bytes.data(), size)).second) << "bit " << bit << " of " << size << " bytes";
      bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    }
  }
}

TEST(DigestBytes, LengthAndPlaceCount) {
  const unsigned char zeros[64] = {};
  std::set<std::uint64_t> seen;
  for (std::size_t size = 0; size <= 64; ++size) EXPECT_TRUE(seen.insert(digest_bytes(zeros, size)).second) << size;
  EXPECT_NE(place_block(7, 0) + place_block(9, 1), place_block(9, 0) + place_block(7, 1));
}

TEST(Combine, NamesValuesAndOrderCount) {
  EXPECT_EQ(combine({{"a", 1}, {"b", 2}}), combine({{"a", 1}, {"b", 2}}));
  const std::set<std::uint64_t> different{
      combine({}),         combine({{"a", 1}}),           combine({{"a", 2}}),
      combine({{"b", 1}}), combine({{"a", 1}, {"b", 2}}), combine({{"b", 2}, {"a", 1}})};
  EXPECT_EQ(different.size(), 6u);
}

TEST(FindDifference, NamesTheReplicaThatStandsAlone) {
  using Held = std::vector<TensorDigest>;
  struct Case {
    const char* what;
    std::vector<Held> held;
    std::optional<DigestDifference> expected;
  };
  const Case cases[] = {
      {"nobody", {}, {}},
      {"one", {{{"a", 1}}}, {}},
      {"equal", {{{"a", 1}, {"b", 2}}, {{"a", 1}, {"b", 2}}}, {}},
      {"two differ: the first is taken for right", {{{"a", 1}}, {{"a", 3}}}, DigestDifference{1, 0, "a"}},
      {"replica 0 is outvoted", {{{"a", 9}}, {{"a", 1}}, {{"a", 1}}}, DigestDifference{0, 1, "a"}},
      {"the middle one", {{{"a", 1}}, {{"a", 9}}, {{"a", 1}}}, DigestDifference{1, 0, "a"}},
      {"two against two", {{{"a", 1}}, {{"a", 2}}, {{"a", 2}}, {{"a", 1}}}, DigestDifference{1, 0, "a"}},
      {"the first name that differs",
       {{{"a", 1}, {"b", 2}, {"c", 3}}, {{"a", 1}, {"b", 5}, {"c", 6}}},
       DigestDifference{1, 0, "b"}},
      {"names that not all have", {{{"a", 1}}, {{"b", 2}}, {{"b", 2}, {"a", 1}}}, {}},
      {"a name that two have", {{{"a", 1}}, {{"b", 2}}, {{"b", 3}}}, DigestDifference{2, 1, "b"}},
  };
  for (const auto& each : cases) {
    std::vector<const Held*> shown;
    for (const auto& held : each.held) shown.push_back(&held);
    EXPECT_EQ(find_difference(shown), each.expected) << each.what;
  }
}

}  // namespace
}  // namespace lockstep
