#include "lockstep/nn/weight_copies.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/nn/owner_plan.h"

namespace lockstep {
namespace {

std::vector<at::Device> on_gpus(const std::vector<int>& indices) {
  std::vector<at::Device> devices;
  for (const int index : indices) devices.emplace_back(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  return devices;
}

TEST(WeightCopies, ReplicasOnOneDeviceShareOne) {
  struct Case {
    std::vector<int> gpus;
    const char* expected;
  };
  for (const Case& each : {Case{{0}, "copy 0: replicas 0\n"}, Case{{0, 0, 0}, "copy 0: replicas 0 1 2\n"},
                           Case{{0, 1}, "copy 0: replicas 0\ncopy 1: replicas 1\n"},
                           Case{{3, 3, 1, 1}, "copy 0: replicas 0 1\ncopy 1: replicas 2 3\n"},
                           Case{{1, 0, 1, 0, 2}, "copy 0: replicas 0 2\ncopy 1: replicas 1 3\ncopy 2: replicas 4\n"}})
    EXPECT_EQ(to_string(plan_weight_copies(on_gpus(each.gpus), /*apart=*/false)), each.expected);
  const std::vector<at::Device> cpus(4, at::Device(at::kCPU));
  EXPECT_EQ(plan_weight_copies(cpus, /*apart=*/false).count(), 1U);
}

TEST(WeightCopies, ApartEachReplicaHasItsOwn) {
  const WeightCopies copies = plan_weight_copies(on_gpus({0, 0, 1}), /*apart=*/true);
  EXPECT_EQ(copies.first, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(copies.of_replica, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(WeightCopies, CpusAndGpusAreDifferentDevices) {
  std::vector<at::Device> devices = on_gpus({0, 0, 1});
  EXPECT_FALSE(plan_weight_copies(devices, /*apart=*/false).is_mixed);
  devices.insert(devices.begin() + 1, 2, at::Device(at::kCPU));
  const WeightCopies copies = plan_weight_copies(devices, /*apart=*/false);
  EXPECT_TRUE(copies.is_mixed);
  EXPECT_EQ(to_string(copies), "copy 0: replicas 0 3\ncopy 1: replicas 1 2\ncopy 2: replicas 4\n");
  EXPECT_FALSE(plan_weight_copies({at::kCPU, at::kCPU}, /*apart=*/true).is_mixed);
}

/// The owners' blocks cover all blocks, each once.
TEST(BlocksOfOwners, AreAllBlocksOnce) {
  for (const int replicas : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(replicas);
    std::vector<OwnedParameter> parameters;
    std::vector<std::size_t> first_block;
    std::size_t blocks = 0;
    for (const std::int64_t elements : {0L, 1L, 4095L, 4096L, 4097L, 50000L, 7L, 123456L}) {
      parameters.push_back({elements, /*whole=*/elements == 7});
      first_block.push_back(blocks);
      blocks += static_cast<std::size_t>(std::max<std::int64_t>(1, (elements + kShardBlock - 1) / kShardBlock));
    }
    std::vector<int> told(blocks);
    for (const auto& segments : plan_owners(parameters, replicas)) {
      std::vector<BlockRange> ranges;
      for (const Segment& segment : segments)
        add_blocks(segment, first_block[static_cast<std::size_t>(segment.parameter)], ranges);
      EXPECT_LE(ranges.size(), 3U) << "neighbours are one range";
      for (const BlockRange& range : ranges) {
        for (std::size_t b = range.begin; b < range.end; ++b) ++told[b];
      }
    }
    told[0] = 1;  // an empty parameter has no owner, and its block stays zero
    EXPECT_EQ(told, std::vector<int>(blocks, 1));
  }
}

}  // namespace
}  // namespace lockstep
