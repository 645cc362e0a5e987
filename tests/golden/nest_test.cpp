#include "tests/support/nest.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/values/local_results.h"
#include "lockstep/values/reducible.h"
#include "lockstep/values/select.h"

namespace lockstep {
namespace {

Nest sample_nest() {
  return Nest::tuple({at::ones({}), Nest::dict({{"b", Nest::list({3, "x"})}, {"a", Nest()}}),
                      Nest::named_tuple("Point", {{"y", 0.5}, {"x", true}})});
}

TEST(Nest, PrintsAsPythonWould) {
  EXPECT_EQ(str(sample_nest()),
            "(Tensor(1.0, shape=(), dtype=float32), {'a': None, 'b': [3, 'x']}, Point(y=0.5, x=True))");
  EXPECT_EQ(str(Nest::list(std::vector<Nest>(7, 1))), "[1, 1, 1, 1, 1, 1, 1]");
  EXPECT_EQ(str(Nest::object("foo")), "<foo>");
}

TEST(Nest, DescribesItsStructure) {
  EXPECT_EQ(structure_string(sample_nest()), "(tensor, {a: none, b: [int, str]}, Point(y=float, x=bool))");
  EXPECT_EQ(structure_string(Nest::list(std::vector<Nest>(7, 1))), "[int x 7]");
  EXPECT_EQ(structure_string(Nest::per_replica({1, "a"})), "PerReplica(int, str)");
}

TEST(Nest, ItemsAreReachedByIndexAndKey) {
  const Nest nest = sample_nest();
  EXPECT_EQ(nest[1]["b"][0].as<int64_t>(), 3);
  EXPECT_TRUE(nest[2]["x"].as<bool>());
  EXPECT_THROW(nest[3], InvalidArgument);
  EXPECT_THROW(nest[1]["c"], InvalidArgument);
  EXPECT_THROW(nest["c"].size(), InvalidArgument);
  EXPECT_THROW(nest[0].as<std::string>(), InvalidArgument);
}

TEST(Nest, CopiesAreIndependent) {
  const Nest original = sample_nest();
  Nest copy = original;
  for_each_leaf(copy, [](auto& leaf) {
    if constexpr (std::is_same_v<std::decay_t<decltype(leaf)>, int64_t>) leaf = 4;
  });
  EXPECT_EQ(copy[1]["b"][0].as<int64_t>(), 4);
  EXPECT_EQ(original[1]["b"][0].as<int64_t>(), 3);
  EXPECT_TRUE(copy[0].as<at::Tensor>().is_same(original[0].as<at::Tensor>()));
}

TEST(Nest, LeavesHavePaths) {
  std::vector<std::string> paths;
  for_each_leaf_with_path(sample_nest(), [&](const std::string& path, const auto&) { paths.push_back(path); });
  EXPECT_EQ(paths, (std::vector<std::string>{"[0]", "[1]['a']", "[1]['b'][0]", "[1]['b'][1]", "[2]['y']", "[2]['x']"}));
}

TEST(Nest, MapReplacesLeaves) {
  const Nest mapped = map_structure([](const auto&) { return 1; }, sample_nest());
  EXPECT_EQ(str(mapped), "(1, {'a': 1, 'b': [1, 1]}, Point(y=1, x=1))");
}

TEST(Nest, IsAPartOfOtherStructures) {
  const std::pair<Nest, int> mixed{Nest::list({1, Nest::per_replica({2, 3})}), 4};
  EXPECT_EQ(structure_string(mixed), "([int, PerReplica(int, int)], int)");
  EXPECT_EQ(str(select_component(mixed, 1).first), "[1, 3]");
  EXPECT_TRUE(contains_distributed_v<decltype(mixed)>);
}

TEST(Nest, SameStructureLooksAtContainersOnly) {
  EXPECT_TRUE(same_structure(Nest::list({1, "a"}), Nest::list({Nest(), 2.0})));
  EXPECT_FALSE(same_structure(Nest::list({1}), Nest::tuple({1})));
  EXPECT_FALSE(same_structure(Nest::list({1}), Nest::list({1, 2})));
  EXPECT_FALSE(same_structure(Nest::dict({{"a", 1}}), Nest::dict({{"b", 1}})));
  EXPECT_FALSE(same_structure(Nest::list({1}), Nest(1)));
}

TEST(Nest, SelectFindsComponentsAtAnyDepth) {
  const Nest nest = Nest::list({Nest::dict({{"a", Nest::per_replica({1, 2})}}), Nest::mirrored({3, 3}), "plain"});
  EXPECT_EQ(str(select_component(nest, 1)), "[{'a': 2}, 3, 'plain']");
  EXPECT_THROW(select_component(nest, 2), InvalidArgument);
}

TEST(Nest, LocalResultsRepeatPlainLeaves) {
  const Nest nest = Nest::list({Nest::per_replica({1, 2}), 7});
  EXPECT_EQ(str(Nest::list(local_results(nest, 2))), "[[1, 7], [2, 7]]");
  EXPECT_EQ(local_results(Nest(5), 2).size(), 1u);
}

TEST(Nest, IsReducedLeafByLeaf) {
  const Nest nest = Nest::list({at::ones({2}), 3, 0.5});
  auto leaves = flatten_reducible(nest);
  ASSERT_EQ(leaves.size(), 3u);
  EXPECT_EQ(std::get<at::Tensor>(leaves[1]).scalar_type(), at::kLong);
  for (auto& leaf : leaves) leaf = std::get<at::Tensor>(leaf).mul(2);
  EXPECT_EQ(str(unflatten_reducible(nest, leaves)), "[Tensor([2. 2.], shape=(2,), dtype=float32), 6, 1.0]");
  EXPECT_THROW(flatten_reducible(Nest::list({Nest()})), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
