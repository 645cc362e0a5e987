#include "lockstep/base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <string>
#include <thread>

namespace lockstep {
namespace {

TEST(Cores, ThreadThatIsKeptOnOneCoreHasOne) {
  EXPECT_GE(usable_cores(), 1);
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(usable_cores(), 1);
  }).join();
}

struct Quota {
  std::string cpu_max;
  int cores;
};

TEST(Cores, QuotaOfAContainer) {
  for (const auto& [cpu_max, cores] :
       {Quota{"max 100000", 8}, Quota{"200000 100000", 2}, Quota{"150000 100000", 2}, Quota{"1000 100000", 1},
        Quota{"6400000 100000", 8}, Quota{"", 8}, Quota{"max", 8}, Quota{"0 100000", 8}, Quota{"100000 0", 8},
        Quota{"-1 100000", 8}, Quota{"nonsense", 8}})
    EXPECT_EQ(cores_under_quota(8, cpu_max), cores) << cpu_max;
}

}  // namespace
}  // namespace lockstep
