#include "lockstep/base/crc32c.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

// By the definition: one bit at a time.
std::uint32_t reference(std::string_view data, std::uint32_t before = 0) {
  std::uint32_t crc = ~before;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
  }
  return ~crc;
}

using Way = std::uint32_t (*)(std::string_view, std::uint32_t);

std::vector<std::pair<const char*, Way>> ways() {
  std::vector<std::pair<const char*, Way>> all{{"crc32c", &crc32c}, {"table", &detail::crc32c_by_table}};
  if (detail::has_crc32c_instruction()) all.emplace_back("instruction", &detail::crc32c_by_instruction);
  return all;
}

std::string noise(std::size_t size) {
  std::string bytes(size, '\0');
  std::uint32_t state = 12345;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525U + 1013904223U) >> 24);
  return bytes;
}

TEST(Crc32c, HasThePublishedValues) {
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  const std::vector<std::pair<std::string, std::uint32_t>> table{{"", 0U},
                                                                 {"a", 0xc1d04330U},
                                                                 {"123456789", 0xe3069283U},
                                                                 {std::string(32, '\0'), 0x8a9136aaU},
                                                                 {std::string(32, '\xff'), 0x62a8ab43U},
                                                                 {ascending, 0x46dd794eU}};
  for (const auto& [name, way] : ways()) {
    for (const auto& [data, expected] : table) EXPECT_EQ(way(data, 0), expected) << name << " of " << data;
  }
}

TEST(Crc32c, IsTheSameByEveryWayForEachAlignmentAndLength) {
  const std::string bytes = noise(600);
  for (std::size_t start = 0; start < 16; ++start) {
    for (std::size_t length = 0; length <= 300; ++length) {
      const auto piece = std::string_view(bytes).substr(start, length);
      const std::uint32_t expected = reference(piece);
      for (const auto& [name, way] : ways())
        ASSERT_EQ(way(piece, 0), expected) << name << ' ' << start << '+' << length;
    }
  }
}

TEST(Crc32c, IsTheSameAroundTheEdgesOfLanes) {
  const std::string bytes = noise(8 * 1536 + 64);
  for (std::size_t lanes = 1; lanes <= 6; ++lanes) {
    for (std::size_t length = lanes * 1536 - 10; length <= lanes * 1536 + 10; ++length) {
      const auto piece = std::string_view(bytes).substr(lanes, length);
      const std::uint32_t expected = reference(piece);
      for (const auto& [name, way] : ways()) ASSERT_EQ(way(piece, 0), expected) << name << ' ' << length;
    }
  }
}

TEST(Crc32c, OfTwoPiecesGoesOnFromTheFirst) {
  const std::string bytes = noise(4000);
  const std::uint32_t whole = reference(bytes);
  for (const std::size_t cut : {0, 1, 7, 8, 1535, 1536, 1537, 3999, 4000}) {
    for (const auto& [name, way] : ways()) {
      EXPECT_EQ(way(bytes.substr(cut), way(bytes.substr(0, cut), 0)), whole) << name << " cut at " << cut;
    }
  }
}

TEST(Crc32c, NoticesEachFlippedBit) {
  std::string bytes = noise(64);
  const std::uint32_t right = crc32c(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const char flipped = static_cast<char>(1U << (bit % 8));
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ flipped);
    EXPECT_NE(crc32c(bytes), right) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ flipped);
  }
}

TEST(Crc32cMask, HasTheKnownValueAndDiffersFromTheChecksum) {
  EXPECT_EQ(mask_crc32c(0xe3069283U), 0xc78ab0e5U);
  for (const std::uint32_t crc : {0U, 1U, 0x7fffU, 0x8000U, 0xe3069283U, 0xffffffffU}) {
    EXPECT_NE(mask_crc32c(crc), crc);
  }
}

}  // namespace
}  // namespace lockstep
