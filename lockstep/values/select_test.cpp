#include "lockstep/values/select.h"

#include <gtest/gtest.h>

#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/values/local_results.h"

namespace lockstep {
namespace {

struct Plain {
  int a;
};

const PerReplica<int> kNumbers({1, 2});
const Mirrored<std::string> kNames({"x", "x"});

TEST(SelectComponent, OfADistributedValueIsAReference) {
  EXPECT_EQ(&select_component(kNumbers, 1), &kNumbers[1]);
  EXPECT_EQ(&select_component(kNames, 0), &kNames[0]);
}

TEST(SelectComponent, OfAnythingElseIsTheSameObject) {
  const int number = 3;
  const std::vector<int> plain{1, 2};
  const Plain aggregate{4};
  const std::unique_ptr<int> owner;
  EXPECT_EQ(&select_component(number, 1), &number);
  EXPECT_EQ(&select_component(plain, 1), &plain);
  EXPECT_EQ(&select_component(aggregate, 1), &aggregate);
  EXPECT_EQ(&select_component(owner, 1), &owner);
}

TEST(SelectComponent, RebuildsContainersAroundComponents) {
  const std::tuple nested{kNumbers, std::vector{std::pair{kNames, 7}}, std::optional{kNumbers},
                          std::map<int, PerReplica<int>>{{5, kNumbers}}, std::string("plain")};
  const auto mine = select_component(nested, 1);
  const decltype(mine) expected{2, {{"x", 7}}, 2, {{5, 2}}, "plain"};
  EXPECT_EQ(mine, expected);
}

TEST(SelectComponent, AnEmptyContainerChangesItsTypeOnly) {
  const auto mine = select_component(std::vector<PerReplica<int>>{}, 1);
  EXPECT_EQ(mine, std::vector<int>{});
}

TEST(SelectComponent, TooFewComponentsAreAnError) {
  const PerReplica<int> one({1});
  EXPECT_THROW(select_component(one, 1), InvalidArgument);
  EXPECT_THROW(select_component(std::vector{one}, 1), InvalidArgument);
  EXPECT_THROW(select_component(one, -1), InvalidArgument);
}

TEST(SelectComponent, TypesAreKnownBeforehand) {
  EXPECT_TRUE((std::is_same_v<selected_t<PerReplica<int>>, int>));
  EXPECT_TRUE((std::is_same_v<selected_t<const std::vector<Mirrored<bool>>&>, std::vector<bool>>));
  EXPECT_TRUE((std::is_same_v<selected_t<std::string&>, std::string>));
  EXPECT_TRUE((contains_distributed_v<std::tuple<int, std::optional<PerReplica<int>>>>));
  EXPECT_TRUE((contains_distributed_v<const std::unordered_map<int, Mirrored<int>>&>));
  EXPECT_TRUE((!contains_distributed_v<std::tuple<int, std::string>>));
  EXPECT_TRUE((!contains_distributed_v<std::tuple<>>));
}

TEST(LocalResults, OfADistributedValueAreItsComponents) {
  EXPECT_EQ(local_results(kNumbers, 2), (std::vector{1, 2}));
  EXPECT_EQ(local_results(PerReplica<bool>({true, false}), 2), (std::vector<bool>{true, false}));
}

TEST(LocalResults, OfAStructureAreOneStructurePerReplica) {
  EXPECT_EQ(local_results(std::pair{kNumbers, 7}, 2), (std::vector<std::pair<int, int>>{{1, 7}, {2, 7}}));
  EXPECT_EQ(local_results(std::vector{7, 8}, 3), std::vector<std::vector<int>>(3, {7, 8}));
  EXPECT_EQ(local_results(std::vector<int>{}, 2).size(), 2u);
}

TEST(LocalResults, OfAnythingElseAreOneValue) {
  EXPECT_EQ(local_results(5, 4), std::vector{5});
  EXPECT_EQ(local_results(std::string("text"), 4), std::vector<std::string>{"text"});
}

}  // namespace
}  // namespace lockstep
