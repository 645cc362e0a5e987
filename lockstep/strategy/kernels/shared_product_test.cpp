#include "lockstep/strategy/kernels/shared_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/support/kernel_reference.h"

namespace lockstep::kernels {
namespace {

using namespace testing_support;

std::vector<const ProductTile*> tiles_here() {
  std::vector<const ProductTile*> tiles = {&portable_tile()};
  if (avx512_tile() != nullptr) tiles.push_back(avx512_tile());
  return tiles;
}

/// The product on `threads` threads; what lies between the rows of the result is checked here.
std::vector<float> product(const ProductTile& tile, const ProductSizes& sizes, MatrixView a, MatrixView b,
                           const float* row, int threads) {
  const std::int64_t stride = sizes.columns + 3;
  std::vector<float> c(static_cast<std::size_t>(sizes.rows * stride), NAN);
  std::vector<float> scratch(static_cast<std::size_t>(shared_product_scratch(tile, sizes)), NAN);
  const auto on_threads = [&](FunctionRef<void(int)> work) {
    std::vector<std::thread> others;
    for (int member = 1; member < threads; ++member) others.emplace_back([=] { work(member); });
    work(0);
    for (auto& other : others) other.join();
  };
  shared_product(tile, sizes, a, b, row, c.data(), stride, scratch.data(), {.size = threads, .run = on_threads});
  std::vector<float> result;
  for (std::int64_t i = 0; i < sizes.rows; ++i) {
    for (std::int64_t j = 0; j < stride; ++j) {
      const float value = c[static_cast<std::size_t>(i * stride + j)];
      if (j < sizes.columns)
        result.push_back(value);
      else
        EXPECT_TRUE(std::isnan(value)) << "written between rows, at " << i << ", " << j;
    }
  }
  return result;
}

/// Rows, inner, columns, and which of the operands are stored by columns.
class SharedProductTest
    : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool>> {};

TEST_P(SharedProductTest, EqualsTheDefinitionWithTheSameBitsOnAnyTeam) {
  const auto [rows, inner, columns, a_by_columns, b_by_columns] = GetParam();
  const ProductSizes sizes{.rows = rows, .inner = inner, .columns = columns};
  const auto a_values = random_values(rows * inner, 3), b_values = random_values(inner * columns, 4),
             row = random_values(columns, 5);
  const MatrixView a = view_of(a_values, rows, inner, a_by_columns),
                   b = view_of(b_values, inner, columns, b_by_columns);
  const double tolerance = tolerance_of(inner);
  for (const ProductTile* tile : tiles_here()) {
    SCOPED_TRACE("tile of " + std::to_string(tile->columns) + " columns");
    const auto alone = product(*tile, sizes, a, b, nullptr, 1), with_row = product(*tile, sizes, a, b, row.data(), 1);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        const double sum = product_at(a, b, inner, i, j);
        const auto at = static_cast<std::size_t>(i * columns + j);
        ASSERT_NEAR(alone[at], sum, tolerance) << i << ", " << j;
        ASSERT_NEAR(with_row[at], sum + row[static_cast<std::size_t>(j)], tolerance) << i << ", " << j;
      }
    }
    for (const int threads : {2, 3, 5}) {
      EXPECT_EQ(product(*tile, sizes, a, b, nullptr, threads), alone) << threads << " threads";
      EXPECT_EQ(product(*tile, sizes, a, b, row.data(), threads), with_row) << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Small, SharedProductTest,
                         testing::Combine(testing::Values(0, 1, 8, 13), testing::Values(0, 1, 12, 37),
                                          testing::Values(0, 1, 48, 101), testing::Bool(), testing::Bool()));
INSTANTIATE_TEST_SUITE_P(SeveralBlocks, SharedProductTest,
                         testing::Combine(testing::Values(264), testing::Values(130), testing::Values(205),
                                          testing::Bool(), testing::Bool()));
// Longer than what is packed at a time, in one direction each.
INSTANTIATE_TEST_SUITE_P(SeveralPanels, SharedProductTest,
                         testing::Values(std::tuple(2051, 9, 13, false, true), std::tuple(9, 2060, 50, true, false),
                                         std::tuple(9, 3100, 50, false, true), std::tuple(10, 7, 2100, false, false)));

TEST(SharedProduct, MemberWhoComesLateLeavesItsWorkToTheOthers) {
  // A team that calls its members one after the other: the first does everything.
  const ProductSizes sizes{.rows = 64, .inner = 32, .columns = 200};
  const auto a = random_values(64 * 32, 1), b = random_values(32 * 200, 2);
  std::vector<float> c(64 * 200), scratch(static_cast<std::size_t>(shared_product_scratch(portable_tile(), sizes)));
  const auto in_order = [](FunctionRef<void(int)> work) {
    for (int member = 0; member < 200; ++member) work(member);  // also more than have a share of their own
  };
  const MatrixView left{a.data(), 32, 1}, right{b.data(), 200, 1};
  shared_product(portable_tile(), sizes, left, right, nullptr, c.data(), 200, scratch.data(),
                 {.size = 200, .run = in_order});
  EXPECT_EQ(c, product(portable_tile(), sizes, left, right, nullptr, 1));
}

TEST(SharedProduct, ScratchMemoryIsBounded) {
  const ProductSizes huge{.rows = 1 << 20, .inner = 1 << 20, .columns = 1 << 20};
  for (const ProductTile* tile : tiles_here()) EXPECT_LE(shared_product_scratch(*tile, huge) * 4, 34 << 20);
}

}  // namespace
}  // namespace lockstep::kernels
