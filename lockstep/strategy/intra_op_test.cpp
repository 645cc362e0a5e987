#include "lockstep/strategy/intra_op.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

TEST(IntraOp, EveryElementIsInOneRange) {
  for (const int threads : {1, 2, 3, 8}) {
    const Threads set(threads);
    for (const std::int64_t count : {0, 1, 2, 7, 64, 1000, 100'003}) {
      for (const std::int64_t grain : {1, 10, 1000, 1'000'000}) {
        for (const auto type : {at::kByte, at::kFloat, at::kDouble}) {
          std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
          std::atomic<int> ranges = 0;
          for_ranges(at::empty({count}, type), grain, [&](std::int64_t begin, std::int64_t end) {
            ++ranges;
            for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
          });
          for (const auto& visit : visits) ASSERT_EQ(visit, 1) << count << " by " << grain << " on " << threads;
          EXPECT_LE(ranges, threads);
          EXPECT_LE(ranges, (count + grain - 1) / grain);
        }
      }
    }
  }
}

TEST(IntraOp, RangesRunOnSeveralThreads) {
  const Threads set(4);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  for_ranges(at::empty({4}, at::kByte), 1, [&](std::int64_t, std::int64_t) {
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(seen.size(), 4u);
}

TEST(IntraOp, OneThreadWhileAskedFor) {
  const Threads set(4);
  std::atomic<int> ranges = 0;
  const auto count = [&](std::int64_t, std::int64_t) { ++ranges; };
  {
    const OneIntraOpThread one;
    for_ranges(at::empty({4}, at::kByte), 1, count);
    EXPECT_EQ(ranges, 1);
    EXPECT_EQ(at::get_num_threads(), 1);
  }
  for_ranges(at::empty({4}, at::kByte), 1, count);
  EXPECT_EQ(ranges, 1 + 4);
  EXPECT_EQ(at::get_num_threads(), 4);
}

TEST(IntraOp, AnExceptionReachesTheCaller) {
  const Threads set(2);
  EXPECT_THROW(for_ranges(at::empty({2}, at::kByte), 1,
                          [](std::int64_t begin, std::int64_t) {
                            if (begin == 1) throw std::runtime_error("no");
                          }),
               std::runtime_error);
}

}  // namespace
}  // namespace lockstep
