#include "lockstep/base/local_values.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::detail {
namespace {

struct Count {
  int value = 7;
};

struct Tracked {
  Tracked() { ++alive; }
  ~Tracked() { --alive; }
  Tracked(const Tracked&) = delete;
  Tracked& operator=(const Tracked&) = delete;
  static inline std::atomic<int> alive{0};
};

TEST(LocalValues, AreMadeWhenAskedForAndKept) {
  LocalValues values;
  EXPECT_EQ(values.find<Count>(), nullptr);
  EXPECT_EQ(values.get<Count>().value, 7);
  ++values.get<Count>().value;
  EXPECT_EQ(values.find<std::string>(), nullptr);
  values.get<std::string>() = "longer than what a std::string stores in itself";
  EXPECT_EQ(values.get<Count>().value, 8);
  EXPECT_EQ(values.find<Count>(), &values.get<Count>());
  EXPECT_EQ(values.get<std::string>(), "longer than what a std::string stores in itself");
}

TEST(LocalValues, OfTwoOwnersAreApart) {
  LocalValues a, b;
  a.get<Count>().value = 1;
  EXPECT_EQ(b.get<Count>().value, 7);
}

TEST(LocalValues, EndWithTheirOwner) {
  {
    LocalValues values;
    EXPECT_EQ(Tracked::alive, 0);
    values.get<Tracked>();
    values.get<Tracked>();
    EXPECT_EQ(Tracked::alive, 1);
  }
  EXPECT_EQ(Tracked::alive, 0);
}

TEST(LocalValues, TakeTheMemoryTheyAreGiven) {
  alignas(std::max_align_t) std::array<std::byte, 256> memory{};
  std::pmr::monotonic_buffer_resource buffer(memory.data(), memory.size(), std::pmr::null_memory_resource());
  LocalValues values(&buffer);
  EXPECT_EQ(values.get<Count>().value, 7);
  EXPECT_EQ(values.get<double>(), 0.0);
  const auto* const at = reinterpret_cast<const std::byte*>(values.find<Count>());
  EXPECT_TRUE(at >= memory.data() && at < memory.data() + memory.size());
}

TEST(LocalValues, AreOnePerTypeForThreadsThatAskAtTheSameTime) {
  for (int round = 0; round < 200; ++round) {
    LocalValues values;
    constexpr int kThreads = 4;
    std::atomic<int> ready{0};
    std::vector<const void*> seen(2 * kThreads);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        ++ready;
        while (ready < kThreads) std::this_thread::yield();
        if (t % 2 == 0) seen[2 * t] = &values.get<Tracked>();
        seen[2 * t + 1] = &values.get<Count>();
        if (t % 2 != 0) seen[2 * t] = &values.get<Tracked>();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::set<const void*>(seen.begin(), seen.end()).size(), 2U);
    EXPECT_EQ(Tracked::alive, 1);
  }
  EXPECT_EQ(Tracked::alive, 0);
}

}  // namespace
}  // namespace lockstep::detail
