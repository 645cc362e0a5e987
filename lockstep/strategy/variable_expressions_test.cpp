#include "lockstep/strategy/variable.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"
#include "tests/support/variable_test.h"

// Variables in place of tensors: as arguments and operands, and in part.
namespace lockstep {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Wherever values go

float number(const at::Tensor& tensor) { return tensor.item<float>(); }

TEST_F(VariableTest, CollectivesTakeVariablesForTheirTensors) {
  const Variable own = make(Aggregation::Sum, Synchronization::OnRead);
  const Variable mirrored = make(Aggregation::None);
  set(own, {1, 3});
  set(mirrored, {5, 5});
  strategy.run([&] {
    auto& replica = get_replica_context();
    EXPECT_EQ(number(replica.all_reduce(ReduceOp::Sum, own)), 4);
    EXPECT_EQ(number(replica.all_reduce(ReduceOp::Mean, mirrored)), 5);
    EXPECT_EQ(replica.all_gather(own.read().reshape({1}), 0).sizes(), (at::IntArrayRef{2}));
    const auto [sum, rest] =
        replica.all_reduce(ReduceOp::Sum, std::pair(own, std::map<std::string, Variable>{{"m", mirrored}}));
    EXPECT_EQ(number(sum), 4);
    EXPECT_EQ(number(rest.at("m")), 10);
  });
  const Variable row = strategy.make_variable(at::ones({1, 2}));
  strategy.run([&] {
    EXPECT_EQ(get_replica_context().all_gather(row, 0).sizes(), (at::IntArrayRef{2, 2}));
    EXPECT_EQ(get_replica_context().all_gather(std::vector{row, row}, 1)[1].sizes(), (at::IntArrayRef{1, 4}));
  });
}

TEST_F(VariableTest, GradientsReachVariablesThroughCollectives) {
  const Variable v = strategy.make_variable(at::ones({2}));
  strategy.run([&] { get_replica_context().all_reduce(ReduceOp::Sum, v).sum().backward(); });
  for (const auto& component : v.values()) EXPECT_EQ(number(component.grad()[0]), 2);
}

TEST_F(VariableTest, ReductionsTakeVariablesAloneAndInStructures) {
  const Variable own = make(Aggregation::Sum, Synchronization::OnRead);
  const Variable mirrored = make(Aggregation::None);
  set(own, {1, 3});
  set(mirrored, {5, 5});
  EXPECT_EQ(number(strategy.reduce(ReduceOp::Sum, own)), 4);
  EXPECT_EQ(number(strategy.reduce(ReduceOp::Mean, std::vector{own, mirrored})[1]), 5);
  EXPECT_EQ(number(strategy.reduce(ReduceOp::Sum, strategy.run([&] { return own; }))), 4);
  EXPECT_EQ(strategy.local_results(std::pair(own, 7)).at(1).second, 7);
  EXPECT_EQ(number(strategy.local_results(std::pair(own, 7)).at(1).first), 3);

  auto& extended = strategy.extended();
  EXPECT_EQ(number(extended.reduce_to(ReduceOp::Sum, own, own)[1]), 4);
  const auto reduced = extended.batch_reduce_to(ReduceOp::Mean, {{own, own}, {mirrored, "cpu:0"}, {own, "cpu:0"}});
  EXPECT_EQ(number(reduced.at(0)[1]), 2);
  EXPECT_EQ(number(reduced.at(1)[0]), 5);
  EXPECT_EQ(reduced.at(2).size(), 1u);
  EXPECT_EQ(number(extended.broadcast_to(mirrored, own)[1]), 5);

  const Variable row = strategy.make_variable(at::ones({1, 2}));
  EXPECT_EQ(strategy.gather(row, 0).sizes(), (at::IntArrayRef{2, 2}));
  EXPECT_EQ(strategy.gather(std::vector{row}, 0)[0].sizes(), (at::IntArrayRef{2, 2}));
  strategy.run([&] {
    const auto merged = get_replica_context().merge_call(
        [](Strategy& s, const PerReplica<Variable>& all) { return s.reduce(ReduceOp::Sum, all); }, own);
    EXPECT_EQ(number(merged), 4);
    EXPECT_EQ(get_replica_context()
                  .merge_call([](Strategy& s, const PerReplica<Variable>& all) { return s.gather(all, 0); }, row)
                  .size(0),
              2);
  });
}

TEST_F(VariableTest, RunHandsVariablesOverAsTheyAre) {
  Variable v = make(Aggregation::Sum);
  strategy.run(
      [](Variable mine, const std::vector<Variable>& more) {
        mine.assign(at::ones({}));
        Variable(more[0]).assign_add(at::ones({}));
      },
      v, std::vector{v});
  EXPECT_EQ(numbers(v), (Numbers{4, 4}));
  const auto doubled = strategy.run([](const at::Tensor& mine) { return mine.mul(2); }, v);
  EXPECT_EQ(number(doubled[1]), 8);
}

// ---------------------------------------------------------------------------------------------------------------------
// Expressions and parts

TEST_F(VariableTest, AreOperandsLikeTensorsOnBothSides) {
  const Variable v = strategy.make_variable(at::tensor({1.f, 2.f, 4.f}));
  const Variable n = strategy.make_variable(at::tensor({1, 2, 6}, at::kInt));
  const at::Tensor t = v.read().detach(), m = n.read();
  const auto expect = [](const at::Tensor& seen, const at::Tensor& wanted) {
    EXPECT_TRUE(same_bits(seen.detach(), wanted));
  };
  expect(v + v, t + t);
  expect(v - t, t - t);
  expect(t * v, t * t);
  expect(v / v, t / t);
  expect(2 / v, 2 / t);
  expect(1.5 - v, 1.5 - t);
  expect(v % 3, t.remainder(3));
  expect(7 % n, at::full({}, 7, at::kInt).remainder(m));
  expect(n & 3, m.bitwise_and(3));
  expect(3 | n, m.bitwise_or(3));
  expect(n ^ m, m.bitwise_xor(m));
  expect(~n, m.bitwise_not());
  expect(-v, t.neg());
  expect(v == 2, t.eq(2));
  expect(2 == v, t.eq(2));
  expect(v != t, t.ne(t));
  expect(v < 2, t.lt(2));
  expect(2 < v, t.gt(2));
  expect(v <= v, t.le(t));
  expect(v > 2.0, t.gt(2.0));
  expect(t >= v, t.ge(t));
  EXPECT_EQ((v + 1).scalar_type(), at::kFloat);
  EXPECT_EQ((n + 1.5).scalar_type(), at::kFloat);
  EXPECT_EQ((n / 2).scalar_type(), at::kFloat);
  strategy.run([&](const at::Tensor& mine) { expect(v * mine, t * mine); },
               PerReplica<at::Tensor>({at::ones({3}), at::zeros({3})}));
}

TEST_F(VariableTest, PartsReadAsTensors) {
  using at::indexing::Slice;
  const Variable v = strategy.make_variable(at::arange(6, at::kFloat).reshape({2, 3}));
  const at::Tensor t = v.read().detach();
  EXPECT_TRUE(same_bits(at::Tensor(v[0]).detach(), t[0]));
  EXPECT_EQ(number(v[1][2]), 5);
  EXPECT_EQ(number(v[-1].read()[0]), 3);
  EXPECT_TRUE(same_bits(v[Slice(0, 1)].read().detach(), t.slice(0, 0, 1)));
  EXPECT_TRUE(same_bits(v.index({"...", Slice(at::indexing::None, at::indexing::None, 2)}).read().detach(),
                        t.slice(1, 0, 3, 2)));
  EXPECT_TRUE(same_bits(at::Tensor(v[t > 2]).detach(), t.masked_select(t > 2)));
  EXPECT_TRUE(same_bits((v[0] + v[1] * 2).detach(), t[0] + t[1] * 2));
  strategy.run([&] { (v[0] * at::ones({3})).sum().backward(); });
  for (const auto& component : v.values()) EXPECT_EQ(number(component.grad().sum()), 3);
}

TEST_F(VariableTest, PartsAreWrittenOutsideOfReplicasToAllComponents) {
  using at::indexing::Slice;
  Variable v = strategy.make_variable(at::zeros({3, 2}));
  const auto expect = [&](const std::vector<float>& wanted) {
    for (const auto& component : v.values()) EXPECT_TRUE(same_bits(component.detach().flatten(), at::tensor(wanted)));
  };
  v[0] = at::ones({2});
  expect({1, 1, 0, 0, 0, 0});
  v[2][1] = 7;
  expect({1, 1, 0, 0, 0, 7});
  v[Slice(1, 3)].assign_add(at::full({2, 2}, 2.f));
  expect({1, 1, 2, 2, 2, 9});
  v.index_put_({"...", 0}, 4);
  expect({4, 1, 4, 2, 4, 9});
  v[0] += 1;
  v[1] -= at::ones({2});
  expect({5, 2, 3, 1, 4, 9});
  v[v.read() > 4] = 0;
  expect({0, 2, 3, 1, 4, 0});
  v[0] = v[1];
  expect({3, 1, 3, 1, 4, 0});
  v[Slice(0, 2)] = v[Slice(1, 3)];  // they overlap
  expect({3, 1, 4, 0, 4, 0});
  EXPECT_TRUE(same_bits(v[0].assign(at::zeros({2})).detach(), at::zeros({2}))) << "reads the part back";
  EXPECT_FALSE(v[0].assign(1, ReadBack::No).defined());
  for (const auto& component : v.values()) EXPECT_TRUE(component.is_leaf());
}

TEST_F(VariableTest, PartsAreWrittenInReplicasAsTheAggregationSays) {
  const auto row0 = [](const Variable& v) {
    Numbers result;
    for (const auto& component : v.values()) {
      result.push_back(component[0].item<double>());
      EXPECT_EQ(component[1].item<double>(), 0) << "another part was changed";
    }
    return result;
  };
  struct Row {
    Aggregation aggregation;
    Synchronization when;
    Numbers wanted;
  };
  for (const Row& row : {Row{Aggregation::None, Synchronization::OnWrite, {1, 2}},
                         Row{Aggregation::Sum, Synchronization::OnWrite, {3, 3}},
                         Row{Aggregation::Mean, Synchronization::OnWrite, {1.5, 1.5}},
                         Row{Aggregation::OnlyFirstReplica, Synchronization::OnWrite, {1, 1}},
                         Row{Aggregation::Sum, Synchronization::OnRead, {1, 2}}}) {
    Variable v = strategy.make_variable(at::zeros({2}), {.synchronization = row.when, .aggregation = row.aggregation});
    strategy.run([&] { v[0] = at::full({}, my_id() + 1.0); });
    EXPECT_EQ(row0(v), row.wanted) << to_string(row.aggregation);
  }
  Variable total = strategy.make_variable(
      at::zeros({2}), {.synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum});
  total[0] = 6;
  EXPECT_EQ(row0(total), (Numbers{3, 3})) << "read as a sum, written as a sum";
  EXPECT_EQ(number(total[0]), 6);
  Variable v = strategy.make_variable(at::zeros({2}));
  strategy.extended().update(v, [&](const at::Tensor&) { v[0] = current_component() + 1; });
  EXPECT_EQ(row0(v), (Numbers{1, 2}));
}

TEST_F(VariableTest, ACloneIsAVariableOfTheSameKind) {
  Variable v = strategy.make_variable(
      at::zeros({}), {.name = "v", .synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum});
  set(v, {1, 3});
  Variable copy = v.clone();
  EXPECT_FALSE(copy.is_same(v));
  EXPECT_EQ(numbers(copy), (Numbers{1, 3}));
  EXPECT_EQ(copy.synchronization(), Synchronization::OnRead);
  EXPECT_EQ(copy.aggregation(), Aggregation::Sum);
  EXPECT_EQ(copy.trainable(), v.trainable());
  EXPECT_EQ(copy.component_name(1), "v/replica_1");
  EXPECT_EQ(&copy.strategy(), &strategy);
  EXPECT_TRUE(strategy.extended().value_container(copy.values()[1])->is_same(copy));
  set(v, {7, 7});
  EXPECT_EQ(numbers(copy), (Numbers{1, 3}));
  EXPECT_EQ(v.clone("other").name(), "other");

  const Variable weights = strategy.make_variable(at::ones({2}));
  const Variable trainable = weights.clone();
  for (const auto& component : trainable.values()) EXPECT_TRUE(component.requires_grad() && component.is_leaf());
  const auto made = strategy.run([&] { return v.clone(); });
  EXPECT_TRUE(made[0].is_same(made[1])) << "replicas make one together";
  EXPECT_EQ(numbers(made[0]), (Numbers{7, 7}));
  EXPECT_FALSE(Variable(at::ones({})).clone().is_distributed());
}

}  // namespace
}  // namespace lockstep
