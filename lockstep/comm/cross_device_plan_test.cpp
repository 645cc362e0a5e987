#include "lockstep/comm/cross_device_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/reduction_tree.h"

namespace lockstep {
namespace {

std::string tree(int lo, int hi) {
  if (hi - lo == 1) return std::to_string(lo);
  const int mid = tree_middle(lo, hi);
  return str("(", tree(lo, mid), "+", tree(mid, hi), ")");
}

// The tree over a list of partial sums.
std::string tree_of(const std::vector<std::string>& parts, int lo, int hi) {
  if (hi - lo == 1) return parts[static_cast<std::size_t>(lo)];
  const int mid = tree_middle(lo, hi);
  return str("(", tree_of(parts, lo, mid), "+", tree_of(parts, mid, hi), ")");
}

// Carries a plan out with texts for values; what each device holds of each shard at the end (-1: the whole).
std::map<int, std::vector<std::string>> carried_out(const ReductionPlan& plan) {
  std::map<int, std::vector<std::string>> held;
  for (const auto& step : plan.steps) {
    auto& values = held[step.shard.value_or(-1)];
    for (int k = static_cast<int>(values.size()); k < plan.devices; ++k) values.push_back(std::to_string(k));
    const auto at = [&](int device) -> std::string& { return values.at(static_cast<std::size_t>(device)); };
    std::vector<std::string> parts;
    for (const int other : step.others) parts.push_back(at(other));
    switch (step.action) {
      case ReductionStep::Action::Sum: at(step.device) = tree_of(parts, 0, static_cast<int>(parts.size())); break;
      case ReductionStep::Action::Send:
        for (const int other : step.others) at(other) = at(step.device);
        break;
      case ReductionStep::Action::AllReduce:
        for (const int other : step.others) at(other) = tree_of(parts, 0, static_cast<int>(parts.size()));
        break;
    }
  }
  return held;
}

TEST(ReductionPlan, GivesEveryDeviceTheTreesSum) {
  for (const auto algorithm :
       {Algorithm::Ordered, Algorithm::OneDevice, Algorithm::HierarchicalCopy, Algorithm::Nccl}) {
    for (int devices = 1; devices <= 9; ++devices) {
      for (int pack = 0; pack <= 2 * devices; ++pack) {
        const auto plan = plan_reduction(algorithm, devices, pack);
        const auto held = carried_out(plan);
        EXPECT_EQ(held.size(), algorithm == Algorithm::Ordered ? static_cast<std::size_t>(devices) : 1u);
        for (const auto& [shard, values] : held) {
          EXPECT_EQ(values, std::vector<std::string>(static_cast<std::size_t>(devices), tree(0, devices)))
              << to_string(plan);
        }
      }
    }
  }
}

TEST(ReductionPlan, OfHierarchicalCopyMovesOnWithThePack) {
  EXPECT_EQ(to_string(plan_reduction(Algorithm::HierarchicalCopy, 4, 1)),
            "hierarchical copy over 4 devices, pack 1\n"
            "  1: sum of 0, 1\n"
            "  3: sum of 2, 3\n"
            "  1: sum of 1, 3\n"
            "  1 -> 3\n"
            "  1 -> 0\n"
            "  3 -> 2");
  EXPECT_EQ(to_string(plan_reduction(Algorithm::HierarchicalCopy, 4, 6)),
            "hierarchical copy over 4 devices, pack 6\n"
            "  0: sum of 0, 1\n"
            "  2: sum of 2, 3\n"
            "  2: sum of 0, 2\n"
            "  2 -> 0\n"
            "  0 -> 1\n"
            "  2 -> 3");
}

TEST(ReductionPlan, OfHierarchicalCopyKeepsTheLastOfAnOddNumberOfDevices) {
  EXPECT_EQ(to_string(plan_reduction(Algorithm::HierarchicalCopy, 3)),
            "hierarchical copy over 3 devices, pack 0\n"
            "  0: sum of 0, 1\n"
            "  2: sum of 2\n"
            "  0: sum of 0, 2\n"
            "  0 -> 2\n"
            "  0 -> 1");
}

TEST(ReductionPlan, PrintsTheOtherAlgorithms) {
  EXPECT_EQ(to_string(plan_reduction(Algorithm::OneDevice, 3)),
            "one device over 3 devices, pack 0\n  0: sum of 0, 1, 2\n  0 -> 1, 2");
  EXPECT_EQ(to_string(plan_reduction(Algorithm::Ordered, 2)),
            "ordered over 2 devices, pack 0\n"
            "  0: sum of 0, 1 (shard 0)\n"
            "  1: sum of 0, 1 (shard 1)\n"
            "  0 -> 1 (shard 0)\n"
            "  1 -> 0 (shard 1)");
  EXPECT_EQ(to_string(plan_reduction(Algorithm::Nccl, 2)), "NCCL over 2 devices, pack 0\n  all-reduce among 0, 1");
  EXPECT_EQ(to_string(plan_reduction(Algorithm::OneDevice, 1)), "one device over 1 device, pack 0\n  0: sum of 0");
}

TEST(ReductionPlan, NeedsADeviceAndAPack) {
  EXPECT_THROW(plan_reduction(Algorithm::OneDevice, 0), InvalidArgument);
  EXPECT_THROW(plan_reduction(Algorithm::Nccl, -1), InvalidArgument);
  EXPECT_THROW(plan_reduction(Algorithm::HierarchicalCopy, 2, -1), InvalidArgument);
}

TEST(NumPacks, MayBeZeroButNotNegative) {
  EXPECT_NO_THROW(check_num_packs(Algorithm::Nccl, 0));
  try {
    check_num_packs(Algorithm::Nccl, -1);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("NCCL all-reduce requires num_packs >= 0"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
