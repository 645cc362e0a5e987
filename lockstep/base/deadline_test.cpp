#include "lockstep/base/deadline.h"

#include <gtest/gtest.h>

#include <limits>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, NeverDoesNotExpire) {
  EXPECT_TRUE(Deadline::never().is_never());
  EXPECT_FALSE(Deadline::never().expired());
  EXPECT_EQ(Deadline::never().remaining(), Deadline::Clock::duration::max());
}

TEST(Deadline, AfterAWhileIsNotYetExpired) {
  const auto deadline = Deadline::after(1h);
  EXPECT_FALSE(deadline.is_never());
  EXPECT_FALSE(deadline.expired());
  EXPECT_GT(deadline.remaining(), 59min);
  EXPECT_LE(deadline.remaining(), 1h);
}

TEST(Deadline, InThePastHasNothingRemaining) {
  for (const auto& deadline : {Deadline::after(0s), Deadline::after(-1h), Deadline::at(Deadline::Clock::now() - 1ns)}) {
    EXPECT_TRUE(deadline.expired());
    EXPECT_EQ(deadline.remaining(), 0ns);
  }
}

TEST(Deadline, BeyondTheClockIsNever) {
  EXPECT_TRUE(Deadline::after(std::chrono::duration<double>(1e30)).is_never());
  EXPECT_TRUE(Deadline::after(std::chrono::duration<double>(std::numeric_limits<double>::infinity())).is_never());
  EXPECT_TRUE(Deadline::after(std::chrono::hours::max()).is_never());
  EXPECT_TRUE(Deadline::after(std::chrono::nanoseconds::max()).is_never());
}

TEST(Deadline, FractionsOfASecondCount) {
  const auto before = Deadline::Clock::now();
  const auto deadline = Deadline::after(std::chrono::duration<double>(0.5));
  const auto remaining = deadline.remaining();
  EXPECT_LE(remaining, 500ms);
  EXPECT_GE(remaining + (Deadline::Clock::now() - before), 500ms) << "what is left and what has passed";
}

}  // namespace
}  // namespace lockstep
