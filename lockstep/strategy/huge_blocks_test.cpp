#include "lockstep/strategy/huge_blocks.h"
#include "lockstep/base/sanitizers.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

/// Counts what it was asked for.
class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    ++requests;
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  int requests = 0;
};

struct HugeBlocksTest : testing::Test {
  Counting plain;
  HugeBlocks blocks{plain, /*huge_bytes=*/1000};
};

TEST_F(HugeBlocksTest, ABlockServesTheNextTensorOfAboutItsSize) {
  void* const first = blocks.allocate(4000).get();
  EXPECT_EQ(blocks.kept_bytes(), 4000u);
  for (const std::size_t bytes : {4000u, 3900u, 3200u}) EXPECT_EQ(blocks.allocate(bytes).get(), first) << bytes;
  EXPECT_EQ(blocks.kept_bytes(), 4000u);
  const auto in_use = blocks.allocate(4000);
  EXPECT_NE(blocks.allocate(4000).get(), in_use.get());
}

TEST_F(HugeBlocksTest, SmallBlocksAreNotKept) {
  blocks.allocate(999);
  EXPECT_EQ(blocks.kept_bytes(), 0u);
  EXPECT_EQ(plain.requests, 1);
  blocks.allocate(1000);
  EXPECT_EQ(blocks.kept_bytes(), 1000u);
  EXPECT_EQ(plain.requests, 1);
}

TEST_F(HugeBlocksTest, TensorsOfDifferentSizesKeepTheirBlocks) {
  for (int step = 0; step < 3; ++step) {
    for (const std::size_t bytes : {8000u, 4000u, 2000u}) blocks.allocate(bytes);
    EXPECT_EQ(blocks.kept_bytes(), 14'000u);
  }
}

TEST_F(HugeBlocksTest, NeverHoldsMoreThanTwiceWhatWasInUse) {
  std::size_t most = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    const std::size_t bytes = 1000 + i * 7919 % 50'000;
    const auto data = blocks.allocate(bytes);
    most = std::max(most, bytes + bytes / 4);
    EXPECT_LE(bytes + blocks.kept_bytes(), 2 * most);
  }
}

TEST_F(HugeBlocksTest, DataIsAlignedAndItsOwnContext) {
  const auto data = blocks.allocate(1001);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data.get()) % 64, 0u);
  EXPECT_TRUE(blocks.is_simple_data_ptr(data));
}

TEST_F(HugeBlocksTest, RawMemoryGoesBackToWhereItCameFrom) {
  void* const huge = blocks.raw_allocate(5000);
  void* const small = blocks.raw_allocate(10);
  blocks.raw_deallocate(huge);
  EXPECT_EQ(blocks.kept_bytes(), 5000u);
  blocks.raw_deallocate(small);
  EXPECT_EQ(blocks.kept_bytes(), 5000u);
}

TEST_F(HugeBlocksTest, NothingInFrontOfForeignMemoryIsRead) {
  // A block's data begins 64 bytes past a multiple of 256. Here what stands in front of such an address, LibTorch has
  // not given: AddressSanitizer ends the test if it is read.
  std::vector<void*> foreign;
  for (int i = 0; i < 256; ++i) foreign.push_back(blocks.raw_allocate(1 + i % 200));
  const auto like_ours = [](void* data) { return reinterpret_cast<std::uintptr_t>(data) % 256 == 64; };
  EXPECT_TRUE(std::any_of(foreign.begin(), foreign.end(), like_ours));
  for (void* const data : foreign) blocks.raw_deallocate(data);
  EXPECT_EQ(blocks.kept_bytes(), 0u);
}

TEST_F(HugeBlocksTest, ABlockFreedElsewhereComesBackToItsThread) {
  auto data = blocks.allocate(4000);
  void* const place = data.get();
  std::thread([&] {
    const auto freed = std::move(data);
    EXPECT_EQ(freed.get(), place);
  }).join();
  std::thread([&] { EXPECT_NE(blocks.allocate(4000).get(), place); }).join();
  EXPECT_EQ(blocks.allocate(4000).get(), place);
}

TEST_F(HugeBlocksTest, WhatIsKeptCanBeGivenBack) {
  const auto in_use = blocks.allocate(4000);
  blocks.allocate(9000);
  EXPECT_EQ(blocks.kept_bytes(), 9000u);
  blocks.release_kept();
  EXPECT_EQ(blocks.kept_bytes(), 0u);
  EXPECT_NE(blocks.allocate(4000).get(), in_use.get());
}

#if !defined(LOCKSTEP_ADDRESS_SANITIZER)  // which ends the process instead
TEST_F(HugeBlocksTest, WhatTheSystemRefusesIsAskedOfThePlainAllocator) {
  blocks.allocate(4000);
  EXPECT_ANY_THROW(blocks.allocate(std::size_t{1} << 60));
  EXPECT_EQ(plain.requests, 1);
  EXPECT_EQ(blocks.kept_bytes(), 0u);
}

TEST_F(HugeBlocksTest, WhatTheSystemRefusesDoesNotRaiseTheBound) {
  EXPECT_ANY_THROW(blocks.allocate(std::size_t{1} << 60));
  // One at a time, each too large for the block of the one before: without a bound all of them would be kept.
  std::size_t bytes = 1000;
  for (int i = 0; i < 20; ++i, bytes = bytes * 3 / 2) {
    const auto data = blocks.allocate(bytes);
    EXPECT_LE(bytes + blocks.kept_bytes(), 2 * bytes);
  }
}
#endif

TEST_F(HugeBlocksTest, AThreadFindsWhatOneThatEndedHasLeft) {
  for (int k = 0; k < 200; ++k) std::thread([&] { blocks.allocate(4000); }).join();
  EXPECT_EQ(blocks.kept_bytes(), 4000u);
}

TEST_F(HugeBlocksTest, BlocksOfThreadsLieAtDifferentPlacesOfAHugePage) {
  std::set<std::uintptr_t> places;
  std::mutex mutex;
  std::vector<std::thread> threads;
  std::barrier all_there(8);
  for (int k = 0; k < 8; ++k) {
    threads.emplace_back([&] {
      const auto data = blocks.allocate(4000);
      all_there.arrive_and_wait();
      const std::lock_guard lock(mutex);
      places.insert(reinterpret_cast<std::uintptr_t>(data.get()) % (2 << 20));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(places.size(), 8u);
  EXPECT_LT(*places.rbegin(), 8192u);
}

TEST_F(HugeBlocksTest, ThreadsNeverShareABlockInUse) {
  std::atomic<int> torn{0};
  std::vector<std::thread> threads;
  for (char mark = 1; mark <= 4; ++mark) {
    threads.emplace_back([&, mark] {
      for (int i = 0; i < 2000; ++i) {
        const std::size_t bytes = 1000 + static_cast<std::size_t>(i % 3) * 700;
        const auto data = blocks.allocate(bytes);
        char* const begin = static_cast<char*>(data.get());
        std::fill_n(begin, bytes, mark);
        torn += static_cast<int>(bytes) - static_cast<int>(std::count(begin, begin + bytes, mark));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace lockstep
