#include "lockstep/comm/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

namespace lockstep::detail {
namespace {

// One element, by way of eight equal ones.

template <class Format>
float widened(std::uint16_t bits) {
  const auto value = static_cast<unsigned short>(bits);
  const Half8 halves = {value, value, value, value, value, value, value, value};
  const Float8 floats = Format::widen(halves);
  return floats.a[0];
}

template <class Format>
std::uint16_t narrowed(float value) {
  const Float4 same = {value, value, value, value};
  const Half8 halves = Format::narrow({same, same});
  return halves[0];
}

template <class Format>
class Formats : public ::testing::Test {};

using AllFormats = ::testing::Types<Float16Format, PortableFloat16Format, BFloat16Format>;
TYPED_TEST_SUITE(Formats, AllFormats);

TYPED_TEST(Formats, BringEveryNumberBack) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = widened<TypeParam>(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(widened<TypeParam>(narrowed<TypeParam>(value)))) << std::hex << bits;
    } else {
      EXPECT_EQ(narrowed<TypeParam>(value), half) << std::hex << bits;
    }
  }
}

TYPED_TEST(Formats, KeepElementsInTheirPlaces) {
  Half8 halves{};
  for (int i = 0; i < 8; ++i) halves[i] = static_cast<unsigned short>(0x3c00 + i);
  const Half8 back = TypeParam::narrow(TypeParam::widen(halves));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(back[i], halves[i]);
}

TYPED_TEST(Formats, RoundTiesToEven) {
  // Neighbours and the float exactly between them, over a fifth of all positive finite numbers.
  for (std::uint32_t bits = 0; std::isfinite(widened<TypeParam>(static_cast<std::uint16_t>(bits + 1))); bits += 5) {
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    const float a = widened<TypeParam>(low);
    const float b = widened<TypeParam>(high);
    const float middle = a + (b - a) / 2;
    const auto even = low % 2 == 0 ? low : high;
    ASSERT_EQ(narrowed<TypeParam>(middle), even) << std::hex << bits;
    ASSERT_EQ(narrowed<TypeParam>(std::nextafter(middle, a)), low) << std::hex << bits;
    ASSERT_EQ(narrowed<TypeParam>(std::nextafter(middle, b)), high) << std::hex << bits;
    ASSERT_EQ(narrowed<TypeParam>(-middle), even | 0x8000) << std::hex << bits;
  }
}

TEST(Float16, HasItsKnownValues) {
  EXPECT_EQ(widened<PortableFloat16Format>(0x3c00), 1.0f);
  EXPECT_EQ(widened<PortableFloat16Format>(0xc000), -2.0f);
  EXPECT_EQ(widened<PortableFloat16Format>(0x7bff), 65504.0f);
  EXPECT_EQ(widened<PortableFloat16Format>(0x0001), 0x1p-24f);
  EXPECT_EQ(narrowed<PortableFloat16Format>(65519.0f), 0x7bff);
  EXPECT_EQ(narrowed<PortableFloat16Format>(65520.0f), 0x7c00);
  EXPECT_EQ(narrowed<PortableFloat16Format>(1e30f), 0x7c00);
  EXPECT_EQ(narrowed<PortableFloat16Format>(-1e-30f), 0x8000);
  EXPECT_EQ(narrowed<PortableFloat16Format>(std::bit_cast<float>(1u)), 0x0000);
}

TEST(BFloat16, HasItsKnownValues) {
  EXPECT_EQ(widened<BFloat16Format>(0x3f80), 1.0f);
  EXPECT_EQ(narrowed<BFloat16Format>(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);
  EXPECT_EQ(narrowed<BFloat16Format>(std::bit_cast<float>(0xffffffffu)), 0x7fc0);
}

TEST(Float16, OfTheCpuAgreesWithThePortableOne) {
  std::mt19937 random(3);
  for (int i = 0; i < 50'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(narrowed<Float16Format>(value), narrowed<PortableFloat16Format>(value)) << value;
  }
}

}  // namespace
}  // namespace lockstep::detail
