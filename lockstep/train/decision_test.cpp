#include "lockstep/train/decision.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::train {
namespace {

struct Row {
  std::string name;
  std::vector<Decision> made;
  Decision expected;
};

TEST(Decisions, AreCombinedAlikeOnEveryWorker) {
  const std::vector<Row> table = {
      {"none", {}, {}},
      {"nothing", {{}, {}}, {}},
      {"one stop is enough", {{}, {.stop = true, .reason = "NaN"}}, {.stop = true, .reason = "NaN"}},
      {"flags of several", {{.save = true}, {.end_epoch = true}}, {.end_epoch = true, .save = true}},
      {"who saves for itself", {{.save_self = true}, {.stop = true}}, {.stop = true, .save_self = true}},
      {"the first rate counts", {{}, {.learning_rate = 0.1}, {.learning_rate = 0.2}}, {.learning_rate = 0.1}},
      {"a rate of zero is a rate", {{.learning_rate = 0.0}, {.learning_rate = 0.2}}, {.learning_rate = 0.0}},
      {"each reason once",
       {{.stop = true, .reason = "a"}, {.stop = true, .reason = "a"}, {.save = true, .reason = "b"}},
       {.stop = true, .save = true, .reason = "a; b"}},
  };
  for (const Row& row : table) EXPECT_EQ(combine(row.made), row.expected) << row.name;
}

TEST(Decisions, SayWhatTheyAre) {
  EXPECT_EQ(to_string(Decision{}), "");
  EXPECT_EQ(to_string(Decision{.reason = "no decision"}), "");
  EXPECT_EQ(to_string({.stop = true, .save = true, .learning_rate = 0.5, .reason = "SIGTERM"}),
            "stop, save, learning rate 0.5 (SIGTERM)");
  EXPECT_TRUE(Decision{.reason = "no decision"}.is_nothing());
  EXPECT_FALSE(Decision{.learning_rate = 0.0}.is_nothing());
}

}  // namespace
}  // namespace lockstep::train
