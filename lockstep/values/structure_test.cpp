#include "lockstep/values/structure.h"

#include <gtest/gtest.h>

#include <any>
#include <functional>
#include <memory>
#include <variant>

namespace lockstep {

// Outside of the anonymous namespace, so that their names look like a user's.
struct TestPoint {
  int x;
  double y;
};

/// A user-defined list, to show that a StructureTraits specialisation is sufficient.
struct TestChain {
  explicit TestChain(std::vector<int> links) : links_(std::move(links)) {}
  std::vector<int> links_;
};

template <>
struct StructureTraits<TestChain> {
  template <class T, class F>
  static void visit(T& chain, const Path& path, F& f) {
    for (std::size_t i = 0; i < chain.links_.size(); ++i) f(Path(path, i), chain.links_[i]);
  }
  template <class F>
  static TestChain map(F& f, const TestChain& chain) {
    return TestChain(detail::map_leaves(f, chain.links_));
  }
  static std::string describe(const TestChain& chain) { return str("chain of ", chain.links_.size()); }
  static bool same_structure(const TestChain& a, const TestChain& b) { return a.links_.size() == b.links_.size(); }
};

namespace {

struct Empty {};
struct One {
  int a;
};
struct Sixteen {
  int f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14;
  std::string f15;
};
struct TwentyFour {
  int f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23;
};
struct TwentyFive {
  int f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23, f24;
};
struct Holder {
  std::optional<int> maybe;
  std::vector<int> many;
  std::function<void()> call;
  std::any any;
  std::variant<int, std::string> either;
  std::shared_ptr<int> shared;
  std::map<std::string, int> named;
  std::array<int, 3> three;
  TestPoint point;
  std::tuple<int, double> pair;
};
struct AnyFirst {
  std::any any;
  int b;
};
struct OnlyFromInt {
  explicit OnlyFromInt(int given) : value(given) {}
  int value;
};
struct HoldsOnlyFromInt {
  int a;
  OnlyFromInt b;
  int c;
};
struct MoveOnly {
  std::unique_ptr<int> p;
};
struct Base {
  int x;
};
struct Derived : Base {
  int y;
};
struct DerivedFromEmpty : Empty {
  int y;
};
struct ArrayFirst {
  int a[3];
  std::string b;
};
struct ArrayLast {
  std::string b;
  int a[2];
};
struct Referring {
  int& r;
};
enum class Colour { Red };

template <class S>
std::vector<std::string> paths_of(const S& s) {
  std::vector<std::string> paths;
  for_each_leaf_with_path(s, [&](const std::string& path, const auto&) { paths.push_back(path); });
  return paths;
}

using Texts = std::vector<std::string>;

TEST(Structure, ContainersAndPlainAggregatesAreStructures) {
  EXPECT_TRUE((is_structure_v<std::tuple<>>));
  EXPECT_TRUE((is_structure_v<std::pair<int, int>>));
  EXPECT_TRUE((is_structure_v<const std::vector<int>&>));
  EXPECT_TRUE((is_structure_v<std::array<int, 2>>));
  EXPECT_TRUE((is_structure_v<std::map<int, int>>));
  EXPECT_TRUE((is_structure_v<std::unordered_map<int, int>>));
  EXPECT_TRUE((is_structure_v<std::optional<int>>));
  EXPECT_TRUE(is_structure_v<Empty>);
  EXPECT_TRUE(is_structure_v<One>);
  EXPECT_TRUE(is_structure_v<Sixteen>);
  EXPECT_TRUE(is_structure_v<TwentyFour>);
  EXPECT_TRUE(is_structure_v<HoldsOnlyFromInt>);
  EXPECT_TRUE(is_structure_v<TestChain>);
}

TEST(Structure, EverythingElseIsALeaf) {
  const auto lambda = [] {};
  EXPECT_FALSE(is_structure_v<int>);
  EXPECT_FALSE(is_structure_v<std::string>);
  EXPECT_FALSE(is_structure_v<Colour>);
  EXPECT_FALSE(is_structure_v<decltype(lambda)>);
  EXPECT_FALSE(is_structure_v<std::shared_ptr<int>>);
  EXPECT_FALSE(is_structure_v<PerReplica<int>>);
  EXPECT_FALSE((is_structure_v<Mirrored<std::pair<int, int>>>));
}

TEST(Structure, AggregatesThatCannotBeTakenApartAreLeaves) {
  EXPECT_FALSE(is_structure_v<MoveOnly>);
  EXPECT_FALSE(is_structure_v<Derived>);
  EXPECT_FALSE(is_structure_v<DerivedFromEmpty>);
  EXPECT_FALSE(is_structure_v<ArrayFirst>);
  EXPECT_FALSE(is_structure_v<ArrayLast>);
  EXPECT_FALSE(is_structure_v<Referring>);
  EXPECT_FALSE(is_structure_v<TwentyFive>);
}

TEST(Structure, FieldsAreCountedWhateverTheirTypes) {
  EXPECT_EQ(detail::field_count<Holder>(), 10u);
  EXPECT_EQ(detail::field_count<AnyFirst>(), 2u);
  EXPECT_EQ(detail::field_count<HoldsOnlyFromInt>(), 3u);
  EXPECT_TRUE(is_structure_v<Holder>);
  EXPECT_TRUE(is_structure_v<AnyFirst>);
}

TEST(Structure, LeavesAreVisitedFromLeftToRightWithTheirPaths) {
  const std::tuple nested{1, std::vector{2, 3}, TestPoint{4, 5.0}, std::pair{std::string("six"), std::optional<int>()}};
  EXPECT_EQ(paths_of(nested), (Texts{"[0]", "[1][0]", "[1][1]", "[2][0]", "[2][1]", "[3][0]"}));
}

TEST(Structure, ALeafAloneHasAnEmptyPath) { EXPECT_EQ(paths_of(7), Texts{""}); }

TEST(Structure, MapsAreVisitedInTheOrderOfTheirKeys) {
  const std::unordered_map<std::string, int> named{{"c", 3}, {"a", 1}, {"b", 2}};
  const std::map<int, int> numbered{{-2, 1}, {10, 2}, {9, 3}};
  EXPECT_EQ(paths_of(named), (Texts{"['a']", "['b']", "['c']"}));
  EXPECT_EQ(paths_of(numbered), (Texts{"[-2]", "[9]", "[10]"}));
  enum class Side { Left, Right };  // cannot be printed
  EXPECT_EQ(paths_of(std::map<Side, int>{{Side::Left, 1}, {Side::Right, 2}}), (Texts{"[...]", "[...]"}));
}

TEST(Structure, EmptyStructuresHaveNoLeaves) {
  EXPECT_EQ(paths_of(std::tuple{}), Texts{});
  EXPECT_EQ(paths_of(std::vector<int>{}), Texts{});
  EXPECT_EQ(paths_of(Empty{}), Texts{});
  EXPECT_EQ(paths_of(std::optional<std::optional<int>>(std::optional<int>())), Texts{});
}

TEST(Structure, LeavesOfAMutableStructureCanBeChanged) {
  std::tuple nested{std::vector<bool>{true, false}, std::array{1, 2}, TestPoint{3, 4.0}, std::map<int, int>{{1, 5}}};
  for_each_leaf(nested, [](auto& leaf) { leaf = static_cast<std::decay_t<decltype(leaf)>>(leaf == 0); });
  EXPECT_EQ(std::get<0>(nested), (std::vector<bool>{false, true}));
  EXPECT_EQ(std::get<1>(nested), (std::array{0, 0}));
  EXPECT_EQ(std::get<2>(nested).y, 0.0);
  EXPECT_EQ(std::get<3>(nested).at(1), 0);
}

TEST(Structure, MoveOnlyLeavesCanBeVisited) {
  std::vector<std::unique_ptr<int>> owners;
  owners.push_back(std::make_unique<int>(1));
  for_each_leaf(owners, [](auto& owner) { ++*owner; });
  EXPECT_EQ(*owners[0], 2);
}

TEST(MapStructure, LeafTypesChangeWithinContainers) {
  const auto text = [](const auto& leaf) { return str(leaf); };
  EXPECT_EQ(map_structure(text, 1), "1");
  EXPECT_EQ(map_structure(text, std::tuple{1, 2.5}), (std::tuple<std::string, std::string>{"1", "2.5"}));
  EXPECT_EQ(map_structure(text, std::pair{1, 'c'}), (std::pair<std::string, std::string>{"1", "c"}));
  EXPECT_EQ(map_structure(text, std::vector{1, 2}), (Texts{"1", "2"}));
  EXPECT_EQ(map_structure(text, std::array{1, 2}), (std::array<std::string, 2>{"1", "2"}));
  EXPECT_EQ(map_structure(text, std::map<int, int>{{1, 2}}), (std::map<int, std::string>{{1, "2"}}));
  EXPECT_EQ(map_structure(text, std::unordered_map<int, int>{{1, 2}}),
            (std::unordered_map<int, std::string>{{1, "2"}}));
  EXPECT_EQ(map_structure(text, std::optional{1}), std::optional<std::string>("1"));
  EXPECT_EQ(map_structure(text, std::optional<int>{}), std::nullopt);
  EXPECT_EQ(map_structure(text, std::vector<bool>{true, false}), (Texts{"1", "0"}));
  EXPECT_EQ(map_structure(text, std::tuple{}), std::tuple{});
  EXPECT_EQ(map_structure(text, std::array<int, 0>{}), (std::array<std::string, 0>{}));
}

TEST(MapStructure, AnAggregateKeepsItsType) {
  const auto twice = [](const auto& leaf) { return leaf + leaf; };
  const TestPoint point = map_structure(twice, TestPoint{1, 2.5});
  EXPECT_EQ(point.x, 2);
  EXPECT_EQ(point.y, 5.0);
  const auto nested = map_structure(twice, std::tuple{std::vector{TestPoint{1, 0}}, 3});
  EXPECT_EQ(std::get<0>(nested)[0].x, 2);
  EXPECT_EQ(std::get<1>(nested), 6);
  EXPECT_EQ(map_structure(twice, Sixteen{.f14 = 7, .f15 = "ab"}).f15, "abab");
}

TEST(MapStructure, TypesWithTraitsTakePart) {
  const auto nested = map_structure([](int leaf) { return leaf + 1; }, std::pair{TestChain({1, 2}), 3});
  EXPECT_EQ(nested.first.links_, (std::vector{2, 3}));
  EXPECT_EQ(paths_of(nested), (Texts{"[0][0]", "[0][1]", "[1]"}));
  EXPECT_EQ(structure_string(nested), "(chain of 2, int)");
}

TEST(StructureString, ShowsKindsLengthsAndKeys) {
  EXPECT_EQ(structure_string(1), "int");
  EXPECT_EQ(structure_string(std::tuple{1, std::string()}), "(int, str)");
  EXPECT_EQ(structure_string(std::tuple{1}), "(int,)");
  EXPECT_EQ(structure_string(std::tuple{}), "()");
  EXPECT_EQ(structure_string(std::vector{1.0, 2.0}), "[double, double]");
  EXPECT_EQ(structure_string(std::vector<bool>(1000)), "[bool x 1000]");
  EXPECT_EQ(structure_string(std::unordered_map<std::string, std::vector<int>>{{"b", {}}, {"a", {1}}}),
            "{a: [int], b: []}");
  EXPECT_EQ(structure_string(std::optional<std::optional<int>>(std::in_place)), "optional(none)");
  EXPECT_EQ(structure_string(TestPoint{}), "TestPoint(int, double)");
  EXPECT_EQ(structure_string(Empty{}), "Empty()");
}

TEST(SameStructure, ComparesLengthsKeysAndPresence) {
  using Nested = std::tuple<std::vector<std::vector<int>>, std::map<std::string, int>, std::optional<int>>;
  const Nested one{{{1}, {2, 3}}, {{"a", 1}}, 1};
  EXPECT_TRUE(same_structure(one, Nested{{{7}, {8, 9}}, {{"a", 2}}, 5}));
  EXPECT_FALSE(same_structure(one, Nested{{{1}, {2}}, {{"a", 1}}, 1}));
  EXPECT_FALSE(same_structure(one, Nested{{{1}, {2, 3}}, {{"b", 1}}, 1}));
  EXPECT_FALSE(same_structure(one, Nested{{{1}, {2, 3}}, {{"a", 1}}, std::nullopt}));
  EXPECT_TRUE(same_structure(TestPoint{1, 2}, TestPoint{3, 4}));
  EXPECT_FALSE(same_structure(TestChain({1}), TestChain({1, 2})));
  EXPECT_FALSE(same_structure(std::vector<bool>{true}, std::vector<bool>{}));
  using Unordered = std::unordered_map<int, std::vector<int>>;
  EXPECT_TRUE(same_structure(Unordered{{1, {1}}, {2, {}}}, Unordered{{2, {}}, {1, {5}}}));
  EXPECT_FALSE(same_structure(Unordered{{1, {1}}}, Unordered{{2, {1}}}));
}

}  // namespace
}  // namespace lockstep
