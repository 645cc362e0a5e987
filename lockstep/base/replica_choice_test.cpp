#include "lockstep/base/replica_choice.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(ReplicaPlan, DoublesUpToAllCores) {
  EXPECT_EQ(plan_replicas(1), (std::vector{1}));
  EXPECT_EQ(plan_replicas(2), (std::vector{1, 2}));
  EXPECT_EQ(plan_replicas(3), (std::vector{1, 2, 3}));
  EXPECT_EQ(plan_replicas(6), (std::vector{1, 2, 4, 6}));
  EXPECT_EQ(plan_replicas(16), (std::vector{1, 2, 4, 8, 16}));
  EXPECT_EQ(plan_replicas(0), (std::vector{1}));
}

ReplicaMeasurement one(int replicas, std::vector<double> rounds, std::int64_t rows = 64) {
  return {.replicas = replicas, .threads = 16 / replicas, .rounds = std::move(rounds), .rows = rows};
}

struct Row {
  const char* name;
  std::vector<ReplicaMeasurement> measured;
  int chosen;
  const char* why;
};

TEST(ReplicaChoice, IsTheFastestOrAsFastWithFewerReplicas) {
  for (const Row& row : std::vector<Row>{
           {"the fastest", {one(1, {0.010}), one(2, {0.006}), one(4, {0.004})}, 4, "2.50 times as fast as one replica"},
           {"the plain one", {one(1, {0.010}), one(2, {0.011}), one(4, {0.020})}, 1, "1 replica with 16 threads each."},
           {"a peak", {one(1, {0.010}), one(2, {0.006}), one(4, {0.009})}, 2, "2 replicas with 8 threads each"},
           {"a tie", {one(1, {0.010}), one(2, {0.0100})}, 1, "1 replica"},
           {"within 2 %", {one(1, {0.010}), one(2, {0.0060}), one(4, {0.0059})}, 2, "; 4 were 2 % faster"},
           {"beyond 2 %, quiet", {one(1, {0.010}), one(2, {0.0060}), one(4, {0.0058})}, 4, "4 replicas"},
           {"beyond 2 %, noisy",
            {one(1, {0.010}), one(2, {0.0057, 0.0060, 0.0063}), one(4, {0.0058})},
            2,
            "within noise"},
           {"a busy machine never hides 6 %",
            {one(1, {0.010}), one(2, {0.004, 0.0060, 0.0090}), one(4, {0.0056})},
            4,
            "the machine was busy"},
           {"a round that was disturbed",
            {one(1, {0.010, 0.010, 0.010}), one(2, {0.006, 0.050, 0.006})},
            2,
            "1.67 times"},
           {"a batch that grows", {one(1, {0.010}, 64), one(2, {0.012}, 128)}, 2, "64 to 128 rows"},
           {"a batch that grows in vain", {one(1, {0.010}, 64), one(2, {0.021}, 128)}, 1, "1 replica"},
           {"rows unknown", {one(1, {0.010}, 0), one(2, {0.008}, 0)}, 2, "Rows are unknown, so steps are compared"},
           {"rows known of some", {one(1, {0.010}, 0), one(2, {0.008}, 64)}, 2, "1.25 times"},
           {"one that failed",
            {one(1, {0.010}), one(2, {0.008}), {.replicas = 4, .not_measured = "it failed"}},
            2,
            "1.25"},
           {"none", {{.replicas = 1, .not_measured = "it failed"}}, 0, "no number of replicas"},
       }) {
    const ReplicaChoice choice = choose_replicas(row.measured);
    EXPECT_EQ(choice.replicas, row.chosen) << row.name << ": " << choice.why;
    EXPECT_NE(choice.why.find(row.why), std::string::npos) << row.name << ": " << choice.why;
  }
}

TEST(ReplicaTable, HasALineForEachNumber) {
  EXPECT_EQ(
      table_of({one(1, {0.0041}), one(2, {0.0027, 0.0028, 0.0026}), {.replicas = 4, .not_measured = "it failed"}}),
      "replicas  threads each  ms per step  rows per second  over one replica\n"
      "       1            16         4.10            15610              1.00\n"
      "       2             8         2.70            23704              1.52\n"
      "       4  not measured: it failed\n");
  EXPECT_EQ(table_of({one(2, {0.002}, 0)}),
            "replicas  threads each  ms per step  rows per second  over one replica\n"
            "       2             8         2.00                -                 -\n");
}

}  // namespace
}  // namespace lockstep
