#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"
#include "tests/support/watchdog.h"

// Collectives against what they are defined to be: the tree of additions, written down naively, and concatenation.
namespace lockstep {
namespace {

using namespace std::chrono_literals;

const std::vector<int> kReplicas{1, 2, 3, 4, 7};

/// T(lo, hi) = T(lo, mid) + T(mid, hi), each node rounded to the element type.
at::Tensor tree_sum(const std::vector<at::Tensor>& x, std::size_t lo, std::size_t hi) {
  if (hi - lo == 1) return x[lo].clone();
  std::size_t half = 1;
  while (2 * half < hi - lo) half *= 2;
  return tree_sum(x, lo, lo + half).add(tree_sum(x, lo + half, hi));
}

at::Tensor naive_reduce(ReduceOp op, const std::vector<at::Tensor>& x) {
  const at::Tensor sum = tree_sum(x, 0, x.size());
  if (op == ReduceOp::Sum) return sum;
  const auto type = sum.scalar_type();
  const bool integral = at::isIntegralType(type, false);
  const auto mean = !integral ? type : type == at::kInt || type == at::kLong ? at::kDouble : at::kFloat;
  return here(sum.cpu().to(mean).div(static_cast<double>(x.size())));
}

at::Tensor random_values(at::IntArrayRef sizes, at::ScalarType type) {
  if (at::isIntegralType(type, false)) return at::randint(0, 120, sizes, at::TensorOptions(type));
  return at::randn(sizes, at::isComplexType(type) ? type : at::kFloat).to(type);
}

enum class Layout { Contiguous, Transposed, EverySecond, Expanded, Negated };

/// `length` random values, laid out in memory in some way.
at::Tensor random_tensor(std::int64_t length, at::ScalarType type, Layout layout) {
  switch (layout) {
    case Layout::Contiguous: return random_values({length}, type);
    case Layout::Transposed: return random_values({3, length}, type).t();
    case Layout::EverySecond: return random_values({2 * length}, type).slice(0, 0, 2 * length, 2);
    case Layout::Expanded: return random_values({1, 2}, type).expand({length, 2});
    case Layout::Negated:
      return type == at::kByte ? random_values({length}, type) : at::_neg_view(random_values({length}, type));
  }
  return {};
}

/// Bring-your-own values: component k is what replica k gives.
template <class F>
PerReplica<at::Tensor> all_reduced(MirroredStrategy& strategy, ReduceOp op, const PerReplica<at::Tensor>& values,
                                   F&& prepare) {
  return strategy.run([&](const at::Tensor& mine) { return get_replica_context().all_reduce(op, prepare(mine)); },
                      values);
}

// ---------------------------------------------------------------------------------------------------------------------
// Sums

class AllReduceTest : public testing::TestWithParam<std::tuple<int, at::ScalarType>> {};

TEST_P(AllReduceTest, GivesTheBitsOfTheTreeOnEveryReplicaAndThoseOfReduce) {
  const auto [replicas, type] = GetParam();
  const Watchdog watchdog(120s, "all_reduce");
  MirroredStrategy strategy(on_devices(replicas));
  for (const std::int64_t length :
       {0, 1, 2, 1001, 9000, 33001}) {  // large ones cross 32 KB, where replicas share the work
    for (const auto layout :
         {Layout::Contiguous, Layout::Transposed, Layout::EverySecond, Layout::Expanded, Layout::Negated}) {
      const auto values = strategy.values_from_function(
          [&, t = type](const ValueContext&) { return random_tensor(length, t, layout); });
      const auto before = values.map([](const at::Tensor& x) { return x.clone(); });
      for (const auto op : {ReduceOp::Sum, ReduceOp::Mean}) {
        const at::Tensor expected = naive_reduce(op, values.values());
        const auto results = all_reduced(strategy, op, values, [](const at::Tensor& x) { return x; });
        const std::string where =
            lockstep::str("length ", length, ", layout ", static_cast<int>(layout), ", ", to_string(op));
        for (std::size_t k = 0; k < results.size(); ++k) {
          ASSERT_TRUE(same_bits(results[k], expected)) << where << ", replica " << k;
          ASSERT_TRUE(same_bits(values[k], before[k])) << where << ": the input of replica " << k << " was changed";
          ASSERT_FALSE(results[k].is_alias_of(values[k])) << where << ", replica " << k;
          if (k > 0) {
            ASSERT_FALSE(results[k].is_alias_of(results[0])) << where << ", replica " << k;
          }
        }
        ASSERT_TRUE(same_bits(strategy.reduce(op, values), expected)) << where;
      }
    }
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<int, at::ScalarType>>& info) {
  return lockstep::str(std::get<1>(info.param), "Over", std::get<0>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Types, AllReduceTest,
                         testing::Combine(testing::ValuesIn(kReplicas),
                                          testing::Values(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte,
                                                          at::kChar, at::kShort, at::kInt, at::kLong, at::kComplexFloat,
                                                          at::kComplexDouble)),
                         name_of);

class CollectivesTest : public testing::TestWithParam<int> {
 protected:
  const Watchdog watchdog{120s, testing::UnitTest::GetInstance()->current_test_info()->name()};
  const int replicas = GetParam();
  MirroredStrategy strategy{on_devices(replicas)};
};

INSTANTIATE_TEST_SUITE_P(Replicas, CollectivesTest, testing::ValuesIn(kReplicas));

TEST_P(CollectivesTest, SpecialValuesComeThroughAsTheTreeGivesThem) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> numbers{0.0, -0.0, inf, -inf, std::nan(""), 1e308, -1e308, 5e-324, 1.0};
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const auto values = strategy.values_from_function([&](const ValueContext& c) {
      return here(at::tensor(numbers, at::kDouble)).roll(c.replica_id_in_sync_group).to(type);
    });
    for (const auto op : {ReduceOp::Sum, ReduceOp::Mean}) {
      const at::Tensor expected = naive_reduce(op, values.values());
      for (const auto& sum : all_reduced(strategy, op, values, [](const at::Tensor& x) { return x; })) {
        // The hardware decides which NaN comes out, but there must be one.
        EXPECT_TRUE(sum.isnan().equal(expected.isnan()));
        EXPECT_TRUE(same_bits(sum.nan_to_num(7, 8, 9), expected.nan_to_num(7, 8, 9)));
      }
    }
  }
}

TEST_P(CollectivesTest, OneTensorThatAllShareCountsOncePerReplica) {
  const at::Tensor shared = at::full({5}, 2.0);
  for (const auto& sum : strategy.run([&] { return get_replica_context().all_reduce(ReduceOp::Sum, shared); })) {
    EXPECT_TRUE(same_bits(sum, shared.mul(replicas)));
  }
}

TEST_P(CollectivesTest, NumbersAreReducedAsTensorsAre) {
  strategy.run([&] {
    auto& replica = get_replica_context();
    EXPECT_EQ(replica.all_reduce(ReduceOp::Sum, 3), 3 * replicas);
    EXPECT_EQ(replica.all_reduce(ReduceOp::Mean, my_id() + 0.5), 0.5 * replicas);
    EXPECT_EQ(replica.all_reduce(ReduceOp::Sum, std::pair(1.5f, std::int64_t{2})),
              std::pair(1.5f * static_cast<float>(replicas), std::int64_t{2} * replicas));
  });
}

TEST_P(CollectivesTest, VariablesAreReducedAsTheirComponents) {
  const Variable v = strategy.make_variable(
      at::ones({2}), {.synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum});
  strategy.run([&] {
    EXPECT_EQ(get_replica_context().all_reduce(ReduceOp::Sum, v.read())[0].item<float>(), static_cast<float>(replicas));
  });
}

struct Gradients {
  at::Tensor weight;
  std::vector<at::Tensor> layers;
  std::map<std::string, at::Tensor> named;
  std::tuple<at::Tensor, double> pair;
  IndexedSlices rows;
};

TEST_P(CollectivesTest, StructuresAreReducedLeafByLeaf) {
  const auto values = strategy.values_from_function([](const ValueContext& c) {
    const int k = c.replica_id_in_sync_group;
    return Gradients{
        .weight = random_values({70, 200}, at::kFloat),
        .layers = {random_values({3}, at::kHalf), random_values({}, at::kDouble), random_values({0}, at::kInt)},
        .named = {{"b", random_values({9000}, at::kFloat)}, {"c", random_values({2, 2}, at::kComplexFloat)}},
        .pair = {random_values({40000}, at::kLong), 0.25 * k},
        .rows = {random_values({k, 2}, at::kFloat), at::full({k}, k, at::kLong), {100, 2}}};
  });
  for (const auto op : {ReduceOp::Sum, ReduceOp::Mean}) {
    const Gradients expected = strategy.reduce(op, values);
    const auto leaf = [&](const auto& pick) { return naive_reduce(op, values.map(pick).values()); };
    EXPECT_TRUE(same_bits(expected.weight, leaf([](const Gradients& g) { return g.weight; })));
    EXPECT_TRUE(same_bits(expected.named.at("c"), leaf([](const Gradients& g) { return g.named.at("c"); })));
    for (const Gradients& result :
         strategy.run([&](const Gradients& mine) { return get_replica_context().all_reduce(op, mine); }, values)) {
      EXPECT_TRUE(same_bits(result.weight, expected.weight));
      for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(result.layers[i], expected.layers[i]));
      for (const auto* key : {"b", "c"}) EXPECT_TRUE(same_bits(result.named.at(key), expected.named.at(key)));
      EXPECT_TRUE(same_bits(std::get<0>(result.pair), std::get<0>(expected.pair)));
      EXPECT_EQ(std::get<1>(result.pair), std::get<1>(expected.pair));
      EXPECT_TRUE(same_bits(result.rows.values, expected.rows.values));
      EXPECT_TRUE(same_bits(result.rows.indices, expected.rows.indices));
    }
  }
}

TEST_P(CollectivesTest, ManyLeavesOfManySizesAreCutIntoShardsWithoutLosingOne) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::int64_t> sizes(1 + random() % 40);
    for (auto& size : sizes)
      size = random() % 3 == 0 ? static_cast<std::int64_t>(random() % 5) : static_cast<std::int64_t>(random() % 5000);
    const auto values = strategy.values_from_function([&](const ValueContext&) {
      std::vector<at::Tensor> leaves;
      for (const auto size : sizes) leaves.push_back(random_values({size}, size % 2 == 0 ? at::kFloat : at::kHalf));
      return leaves;
    });
    const auto results = strategy.run(
        [](const std::vector<at::Tensor>& mine) { return get_replica_context().all_reduce(ReduceOp::Mean, mine); },
        values);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const at::Tensor expected =
          naive_reduce(ReduceOp::Mean, values.map([&](const auto& leaves) { return leaves[i]; }).values());
      for (const auto& result : results)
        ASSERT_TRUE(same_bits(result[i], expected)) << "leaf " << i << " of " << sizes.size();
    }
  }
}

TEST_P(CollectivesTest, NothingReducesToNothing) {
  strategy.run([] {
    auto& replica = get_replica_context();
    EXPECT_TRUE(replica.all_reduce(ReduceOp::Sum, std::vector<at::Tensor>{}).empty());
    EXPECT_TRUE(replica.all_gather(std::map<std::string, at::Tensor>{}, 0).empty());
  });
}

TEST_P(CollectivesTest, SparseRowsOfAllReplicasComeOneBehindTheOther) {
  const auto rows = strategy.values_from_function([](const ValueContext& c) {
    const int k = c.replica_id_in_sync_group;  // replica 0 has none
    return IndexedSlices{random_values({k, 3}, at::kFloat), at::full({k}, 5 - k % 3, at::kLong), {6, 3}};
  });
  const auto all = [&](auto&& pick) { return at::cat(rows.map(pick).values()); };
  const at::Tensor values = all([](const IndexedSlices& r) { return r.values; });
  const at::Tensor indices = all([](const IndexedSlices& r) { return r.indices; });
  for (const auto op : {ReduceOp::Sum, ReduceOp::Mean}) {
    for (const auto& result :
         strategy.run([&](const IndexedSlices& mine) { return get_replica_context().all_reduce(op, mine); }, rows)) {
      EXPECT_TRUE(same_bits(result.indices, indices));
      EXPECT_TRUE(
          same_bits(result.values, op == ReduceOp::Sum ? values : values.cpu().div(static_cast<double>(replicas))));
      EXPECT_EQ(result.dense_shape, (std::vector<std::int64_t>{6, 3}));
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Gathering

TEST_P(CollectivesTest, AllGatherConcatenatesUnevenPartsAlongAnyAxis) {
  for (const std::int64_t axis : {0, 1, -1}) {
    const auto values = strategy.values_from_function([&](const ValueContext& c) {
      const std::int64_t size = c.replica_id_in_sync_group;  // replica 0 gives nothing
      return axis == 0 ? random_values({size, 3}, at::kFloat) : random_values({size, 3}, at::kFloat).t();
    });
    const at::Tensor expected = at::cat(values.values(), axis);
    const auto results =
        strategy.run([&](const at::Tensor& mine) { return get_replica_context().all_gather(mine, axis); }, values);
    for (const auto& result : results) EXPECT_TRUE(same_bits(result, expected));
    EXPECT_TRUE(same_bits(strategy.gather(values, axis), expected));
  }
}

TEST_P(CollectivesTest, AllGatherTakesStructuresAndEveryType) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kComplexFloat}) {
    strategy.run([&] {
      const auto mine = std::pair(at::full({2}, my_id() % 2, type), std::vector{at::ones({1, 1}, type)});
      const auto [flat, nested] = get_replica_context().all_gather(mine, 0);
      EXPECT_EQ(flat.size(0), 2 * replicas);
      EXPECT_EQ(nested[0].size(0), replicas);
      EXPECT_EQ(flat.scalar_type(), type);
      for (int k = 0; k < replicas; ++k) EXPECT_EQ(flat[2 * k].item<int>(), k % 2);
    });
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Gradients

TEST_P(CollectivesTest, TheGradientOfAllReduceIsTheAllReduceOfTheGradients) {
  for (const std::int64_t length : {2, 20000}) {
    for (const auto op : {ReduceOp::Sum, ReduceOp::Mean}) {
      const auto weights =
          strategy.values_from_function([&](const ValueContext&) { return random_values({length}, at::kFloat); });
      const at::Tensor expected = naive_reduce(op, weights.values());
      strategy.run(
          [&](const at::Tensor& weight) {
            at::Tensor x = at::ones({length}).requires_grad_();
            at::Tensor y = get_replica_context().all_reduce(op, x);
            EXPECT_TRUE(y.requires_grad());
            y.mul(weight).sum().backward();
            EXPECT_TRUE(same_bits(x.grad(), expected));
          },
          weights);
    }
  }
}

TEST_P(CollectivesTest, TheGradientOfAllGatherIsTheOwnPartOfTheSum) {
  for (const std::int64_t axis : {0, 1, -1}) {
    const auto along = static_cast<std::int64_t>(axis == 0 ? 0 : 1);
    const std::int64_t total = replicas * (replicas - 1) / 2;
    const auto shape = [&](std::int64_t size) {
      return along == 0 ? std::vector<std::int64_t>{size, 3} : std::vector<std::int64_t>{3, size};
    };
    const auto weights =
        strategy.values_from_function([&](const ValueContext&) { return random_values(shape(total), at::kFloat); });
    const at::Tensor sum = naive_reduce(ReduceOp::Sum, weights.values());
    strategy.run(
        [&](const at::Tensor& weight) {
          const std::int64_t id = my_id();
          at::Tensor x = at::ones(shape(id)).requires_grad_();
          get_replica_context().all_gather(x, axis).mul(weight).sum().backward();
          EXPECT_TRUE(same_bits(x.grad(), sum.narrow(along, id * (id - 1) / 2, id)))
              << "axis " << axis << ", replica " << id;
        },
        weights);
  }
}

TEST_P(CollectivesTest, GradientsGoThroughStructuresWhereTheyAreWanted) {
  strategy.run([&] {
    at::Tensor wanted = at::ones({3}).requires_grad_();
    at::Tensor also = at::ones({2}, at::kDouble).requires_grad_();
    const IndexedSlices rows{at::ones({1, 2}), at::zeros({1}, at::kLong), {4, 2}};
    const auto [a, rest, sparse, count] = get_replica_context().all_reduce(
        ReduceOp::Sum, std::tuple(wanted.mul(2), std::vector{at::ones({2}), also}, rows, at::ones({2}, at::kInt)));
    EXPECT_EQ(sparse.indices.size(0), replicas);
    EXPECT_EQ(count[0].item<int>(), replicas);
    a.sum().add(rest[1].sum()).backward();
    EXPECT_TRUE(same_bits(wanted.grad(), at::full({3}, 2.0f * static_cast<float>(replicas))));
    EXPECT_TRUE(same_bits(also.grad(), at::full({2}, replicas, at::kDouble)));
  });
}

TEST_P(CollectivesTest, ReplicasThatWantGradientsMeetThoseThatDoNot) {
  strategy.run([&] {
    auto& replica = get_replica_context();
    at::Tensor x = at::ones({3});
    x.requires_grad_(my_id() % 2 == 0);
    EXPECT_TRUE(same_bits(replica.all_reduce(ReduceOp::Sum, x), at::full({3}, replicas, at::kFloat)));
    EXPECT_TRUE(same_bits(replica.all_gather(x, 0), at::ones({3 * replicas})));
    EXPECT_TRUE(same_bits(replica.all_reduce(ReduceOp::Sum, std::vector{x})[0], at::full({3}, replicas, at::kFloat)));
  });
}

TEST_P(CollectivesTest, NoGradientIsRecordedWhereNoneIsWanted) {
  strategy.run([] {
    const at::NoGradGuard no_grad;
    at::Tensor x = at::ones({3}).requires_grad_();
    EXPECT_FALSE(get_replica_context().all_reduce(ReduceOp::Sum, x).requires_grad());
    EXPECT_FALSE(get_replica_context().all_gather(x, 0).requires_grad());
  });
}

TEST_P(CollectivesTest, GradientsOfGradientsGoThroughCollectives) {
  strategy.run([&] {
    const double n = replicas;
    at::Tensor x = at::full({}, 2.0, at::kDouble).requires_grad_();
    const at::Tensor sum = get_replica_context().all_reduce(ReduceOp::Sum, x.pow(3));  // n * 8 on every replica
    // Gradients are those of all replicas' losses together: L = n S^2 with S = x_0^3 + ... + x_{n-1}^3.
    const at::Tensor first = torch::autograd::grad({sum.pow(2)}, {x}, {}, true, true)[0];
    EXPECT_DOUBLE_EQ(first.item<double>(), 6 * n * (8 * n) * 4);  // 6 n S x^2
    // The sum of these over replicas is 6 n S Q with Q = x_0^2 + ... + x_{n-1}^2.
    const at::Tensor second = torch::autograd::grad({first}, {x})[0];
    EXPECT_DOUBLE_EQ(second.item<double>(), 6 * n * (3 * 4 * (4 * n) + (8 * n) * 2 * 2));  // 6 n (3 x^2 Q + S 2 x)
  });
}

TEST_P(CollectivesTest, CollectivesMayBeMadeInsideBackward) {
  strategy.run([&] {
    at::Tensor x = at::ones({2}).requires_grad_();
    x.register_hook(
        [](const at::Tensor& gradient) { return get_replica_context().all_reduce(ReduceOp::Mean, gradient); });
    x.mul(my_id() + 1).sum().backward();
    EXPECT_FLOAT_EQ(x.grad()[0].item<float>(), 0.5f * static_cast<float>(replicas + 1));
  });
}

TEST_P(CollectivesTest, AGraphOfOneRunIsGoodForBackwardInALaterOne) {
  const auto inputs = strategy.run([] { return at::ones({2}).requires_grad_(); });
  const auto outputs =
      strategy.run([](const at::Tensor& x) { return get_replica_context().all_reduce(ReduceOp::Sum, x); }, inputs);
  strategy.run([](const at::Tensor& y) { y.sum().backward(); }, outputs);
  for (const auto& x : inputs) EXPECT_TRUE(same_bits(x.grad(), at::full({2}, replicas, at::kFloat)));
}

}  // namespace
}  // namespace lockstep
