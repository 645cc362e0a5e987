#include "lockstep/comm/reduction_tree.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

// The tree as text: "((0+1)+2)".
std::string tree(int lo, int hi) {
  if (hi - lo == 1) return std::to_string(lo);
  int half = 1;
  while (2 * half < hi - lo) half *= 2;
  return str("(", tree(lo, lo + half), "+", tree(lo + half, hi), ")");
}

std::string added_up(int count) {
  std::vector<std::string> x;
  for (int k = 0; k < count; ++k) x.push_back(std::to_string(k));
  for (const auto& step : plan_reduction_tree(count)) {
    auto& into = x[static_cast<std::size_t>(step.into)];
    into = str("(", into, "+", x[static_cast<std::size_t>(step.from)], ")");
  }
  return x[0];
}

TEST(ReductionTree, HasTheKnownShapes) {
  EXPECT_EQ(added_up(1), "0");
  EXPECT_EQ(added_up(2), "(0+1)");
  EXPECT_EQ(added_up(3), "((0+1)+2)");
  EXPECT_EQ(added_up(4), "((0+1)+(2+3))");
  EXPECT_EQ(added_up(5), "(((0+1)+(2+3))+4)");
  EXPECT_EQ(added_up(6), "(((0+1)+(2+3))+(4+5))");
  EXPECT_EQ(added_up(7), "(((0+1)+(2+3))+((4+5)+6))");
}

TEST(ReductionTree, StepsGiveTheTreeForAnyCount) {
  for (int count = 1; count <= 17; ++count) {
    EXPECT_EQ(added_up(count), tree(0, count));
    EXPECT_EQ(plan_reduction_tree(count).size(), static_cast<std::size_t>(count - 1));
  }
}

TEST(ReductionTree, OfNothingHasNoSteps) { EXPECT_TRUE(plan_reduction_tree(0).empty()); }

TEST(ReductionTree, IsCutAtTheLargestPowerOfTwoBelowItsLength) {
  EXPECT_EQ(tree_middle(0, 2), 1);
  EXPECT_EQ(tree_middle(0, 3), 2);
  EXPECT_EQ(tree_middle(0, 8), 4);
  EXPECT_EQ(tree_middle(0, 9), 8);
  EXPECT_EQ(tree_middle(4, 7), 6);
  EXPECT_EQ(tree_middle(0, 2147483647), 1 << 30);
}

}  // namespace
}  // namespace lockstep
