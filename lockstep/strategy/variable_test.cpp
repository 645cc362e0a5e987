#include "lockstep/strategy/variable.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/strategy/default_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"
#include "tests/support/variable_test.h"

// Variables: what they are made of, how they print, who may create and write them where, and what survives a checkpoint.
namespace lockstep {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Looks and properties

TEST_F(VariableTest, PrintsOneLinePerComponent) {
  EXPECT_EQ(printed(strategy.make_variable(at::ones({}), {.name = "v"})),
            "Variable OnWrite:{\n"
            "  0: <'v' shape=() dtype=float32 value=1.0>,\n"
            "  1: <'v/replica_1' shape=() dtype=float32 value=1.0>\n"
            "}");
  EXPECT_EQ(printed(strategy.make_variable(at::zeros({2}, at::kLong),
                                           {.name = "hits", .synchronization = Synchronization::OnRead})),
            "Variable OnRead:{\n"
            "  0: <'hits' shape=(2,) dtype=int64 value=array([0, 0])>,\n"
            "  1: <'hits/replica_1' shape=(2,) dtype=int64 value=array([0, 0])>\n"
            "}");
  EXPECT_EQ(printed(MirroredStrategy(on_devices(1)).make_variable(at::ones({}))),
            "Variable OnWrite:{\n"
            "  0: <'Variable' shape=() dtype=float32 value=1.0>\n"
            "}");
  EXPECT_EQ(printed(Variable(at::ones({}), {.name = "alone"})), "Variable <'alone' shape=() dtype=float32 value=1.0>");
}

TEST_F(VariableTest, NamesAreThoseOfTensorFlow) {
  const Variable v = strategy.make_variable(at::ones({}), {.name = "dense/kernel"});
  EXPECT_EQ(v.name(), "dense/kernel");
  EXPECT_EQ(v.component_name(0), "dense/kernel");
  EXPECT_EQ(v.component_name(1), "dense/kernel/replica_1");
  EXPECT_EQ(strategy.make_variable(at::ones({})).name(), "Variable");
}

TEST_F(VariableTest, PropertiesAreResolvedAtCreation) {
  const Variable v = strategy.make_variable(at::ones({2, 3}), {.dtype = at::kDouble});
  EXPECT_EQ(v.dtype(), at::kDouble);
  EXPECT_EQ(v.shape(), (at::IntArrayRef{2, 3}));
  EXPECT_EQ(v.synchronization(), Synchronization::OnWrite);
  EXPECT_EQ(v.aggregation(), Aggregation::None);
  EXPECT_EQ(v.device(), test_device());
  EXPECT_TRUE(v.is_initialized());
  EXPECT_TRUE(v.is_distributed());
  EXPECT_EQ(&v.strategy(), &strategy);
  EXPECT_FALSE(Variable(at::ones({})).is_distributed());
  EXPECT_TRUE(Variable(at::ones({})).strategy().is_default());
}

TEST_F(VariableTest, ModesHaveNamesThatCanBeRead) {
  for (const auto mode :
       {Synchronization::Auto, Synchronization::None, Synchronization::OnWrite, Synchronization::OnRead}) {
    EXPECT_EQ(parse_synchronization(to_string(mode)), mode);
  }
  for (const auto mode : {Aggregation::None, Aggregation::Sum, Aggregation::Mean, Aggregation::OnlyFirstReplica}) {
    EXPECT_EQ(parse_aggregation(to_string(mode)), mode);
  }
}

TEST_F(VariableTest, TrainableFloatsWantGradients) {
  struct Row {
    Synchronization when;
    at::ScalarType type;
    std::optional<bool> asked;
    bool trainable;
    bool wants;
  };
  for (const Row& row : {Row{Synchronization::Auto, at::kFloat, {}, true, true},
                         Row{Synchronization::Auto, at::kFloat, false, false, false},
                         Row{Synchronization::Auto, at::kLong, {}, true, false},
                         Row{Synchronization::OnRead, at::kFloat, {}, false, false},
                         Row{Synchronization::OnRead, at::kFloat, true, true, true},
                         Row{Synchronization::OnWrite, at::kBFloat16, {}, true, true}}) {
    const Variable v =
        strategy.make_variable(at::zeros({2}, row.type), {.synchronization = row.when, .trainable = row.asked});
    EXPECT_EQ(v.trainable(), row.trainable);
    for (const auto& component : v.values()) EXPECT_EQ(component.requires_grad(), row.wants);
  }
}

TEST_F(VariableTest, ComponentsShareMemoryWithNothing) {
  const at::Tensor initial = at::ones({3});
  const Variable v = strategy.make_variable(initial);
  EXPECT_FALSE(v.values()[0].is_alias_of(v.values()[1]));
  EXPECT_FALSE(v.values()[0].is_alias_of(initial));
  EXPECT_FALSE(v.values()[0].is_alias_of(v.initial_value()));
}

TEST_F(VariableTest, SparseValuesCanBeAssigned) {
  const at::Tensor dense = at::ones({3}).diag();
  Variable variable = strategy.make_variable(
      dense.to_sparse(), {.synchronization = Synchronization::OnRead, .aggregation = Aggregation::OnlyFirstReplica});
  const at::Tensor twice = dense.mul(2).to_sparse();
  strategy.run([&] { variable.assign(twice); });
  for (const at::Tensor& component : variable.values()) EXPECT_TRUE(component.to_dense().equal(dense.mul(2)));
}

TEST_F(VariableTest, AHandleIsTheVariableAndItsEndTheEndOfTheComponents) {
  c10::weak_intrusive_ptr<c10::TensorImpl> component(at::ones({}).getIntrusivePtr());
  at::Tensor kept;
  {
    const Variable v = make(Aggregation::Sum);
    const Variable copy = v;
    EXPECT_TRUE(copy.is_same(v));
    EXPECT_FALSE(copy.is_same(make(Aggregation::Sum)));
    component = c10::weak_intrusive_ptr<c10::TensorImpl>(v.values()[0].getIntrusivePtr());
    kept = v.values()[1];
    ASSERT_TRUE(strategy.extended().value_container(kept));
    EXPECT_TRUE(strategy.extended().value_container(kept)->is_same(v));
  }
  EXPECT_TRUE(component.expired());
  EXPECT_FALSE(strategy.extended().value_container(kept));
}

TEST_F(VariableTest, ContainersAreFoundForOwnComponentsOnly) {
  MirroredStrategy other(on_devices(2));
  const Variable v = make(Aggregation::Sum);
  EXPECT_TRUE(strategy.extended().variable_created_in_scope(v));
  EXPECT_FALSE(other.extended().variable_created_in_scope(v));
  EXPECT_FALSE(other.extended().value_container(v.values()[0]));
  EXPECT_FALSE(strategy.extended().value_container(at::ones({})));
  EXPECT_FALSE(strategy.extended().value_container({}));
}

TEST_F(VariableTest, AreColocatedWithTheVariableAskedFor) {
  const auto scope = strategy.scope();
  const Variable v(at::zeros({}));
  {
    const auto colocated = strategy.extended().colocate_vars_with(v);
    EXPECT_EQ(Variable(at::ones({2})).values().size(), v.values().size());
    strategy.run([&] { EXPECT_EQ(Variable(at::ones({2})).values().size(), v.values().size()); });
  }
  EXPECT_EQ(Variable(at::ones({2})).values().size(), 2u);
}

// ---------------------------------------------------------------------------------------------------------------------
// Creation inside replicas

TEST_F(VariableTest, ReplicasCreateOneVariableTogether) {
  std::atomic<int> initialised = 0;
  const auto created = strategy.run([&] {
    return Variable(Variable::Initializer([&] {
                      ++initialised;
                      return at::zeros({});
                    }),
                    {.name = "inside", .aggregation = Aggregation::Sum});
  });
  EXPECT_EQ(initialised, 1);
  EXPECT_TRUE(created[0].is_same(created[1]));
  EXPECT_EQ(created[0].values().size(), 2u);
  strategy.run([&] { Variable(created[0]).assign(at::ones({})); });
  EXPECT_EQ(numbers(created[0]), (Numbers{2, 2}));
}

TEST_F(VariableTest, ReplicasFindTheKthVariableOfAName) {
  const auto created = strategy.run([] {
    std::vector<Variable> made;
    for (int k = 0; k < 3; ++k)
      made.emplace_back(at::full({}, k), VariableOptions{.name = my_id() == 0 ? "w_1" : "w_2"});
    made.emplace_back(at::full({}, 3), VariableOptions{.name = my_id() == 0 ? "dense/kernel" : "dense_1/kernel"});
    made.emplace_back(at::full({}, 4));
    return made;
  });
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(created[0][i].is_same(created[1][i]));
    EXPECT_EQ(created[0][i].values()[1].item<float>(), static_cast<float>(i));
  }
  EXPECT_EQ(created[1][3].name(), "dense/kernel") << "the name is replica 0's";
}

TEST_F(VariableTest, EveryRunCreatesAnew) {
  const auto create = [&] { return strategy.run([] { return Variable(at::ones({}), {.name = "again"}); })[0]; };
  EXPECT_FALSE(create().is_same(create()));
}

TEST_F(VariableTest, AnInitializerThatThrowsFailsTheRunAndNothingElse) {
  const LoggedLines quiet;
  EXPECT_THROW(strategy.run([] {
    const Variable v(Variable::Initializer([]() -> at::Tensor { throw std::overflow_error("no"); }));
  }),
               std::overflow_error);
  EXPECT_EQ(strategy.run([] { return Variable(at::ones({})); })[0].values().size(), 2u);
}

// ---------------------------------------------------------------------------------------------------------------------
// Writing

TEST_F(VariableTest, AValueThatLiesInTheVariableIsReadBeforeItIsWritten) {
  for (const auto when : {Synchronization::OnWrite, Synchronization::OnRead}) {
    Variable v = make(Aggregation::OnlyFirstReplica, when);
    v.assign(3);
    v.assign_add(v.read());
    EXPECT_EQ(numbers(v), (Numbers{6, 6}));
    v.assign_sub(v.values()[0]);
    EXPECT_EQ(numbers(v), (Numbers{0, 0}));
  }
  Variable matrix = strategy.make_variable(at::arange(4, at::kFloat).reshape({2, 2}));
  matrix.assign(matrix.read().detach().t());
  for (const auto& component : matrix.values())
    EXPECT_TRUE(same_bits(component, at::tensor({0.f, 2.f, 1.f, 3.f}).reshape({2, 2})));
  matrix.scatter_add({matrix.read().detach(), at::tensor({1, 0}), {}});
  for (const auto& component : matrix.values())
    EXPECT_TRUE(same_bits(component, at::tensor({1.f, 5.f, 1.f, 5.f}).reshape({2, 2})));
}

TEST_F(VariableTest, AComponentThatAllReplicasAssignIsReadBeforeItIsWritten) {
  Variable v = make(Aggregation::Mean);
  v.assign(3);
  const at::Tensor first = v.values()[0];
  strategy.run([&] { v.assign_add(first); });
  EXPECT_EQ(numbers(v), (Numbers{6, 6}));
}

TEST_F(VariableTest, EqualValuesAreTheirMean) {
  MirroredStrategy three(on_devices(3));  // added up and divided by three, some of these numbers would be rounded
  const at::Tensor values = at::arange(1, 41, at::kFloat) * 0.1;
  Variable v = three.make_variable(at::zeros({40}), {.aggregation = Aggregation::Mean});
  three.run([&] { v.assign(values); });
  EXPECT_TRUE(same_bits(v.read(), values));
  three.run([&] { v.assign(values * 2); });
  EXPECT_TRUE(same_bits(v.read(), values * 2));
  three.run([&] { v.assign(values * get_replica_context().replica_id_in_sync_group()); });
  EXPECT_TRUE(same_bits(v.read().cpu(), (values + values * 2).cpu() / 3));  // which on a GPU is rounded otherwise
}

TEST_F(VariableTest, AWrongValueLeavesEveryComponentAsItWas) {
  Variable v = make(Aggregation::Sum);
  const auto second_is_wrong = PerReplica<at::Tensor>({at::ones({}), at::ones({2})});
  EXPECT_EQ(error_of([&] { v.assign(second_is_wrong); }).number, errors::kShape);
  EXPECT_EQ(error_of([&] { strategy.run([&](const at::Tensor& mine) { v.assign(mine); }, second_is_wrong); }).number,
            errors::kShape);
  Variable table = strategy.make_variable(at::zeros({2, 1}), {.aggregation = Aggregation::Sum});
  EXPECT_EQ(error_of([&] { table.scatter_add({at::ones({2, 1}), at::tensor({0, 7}), {}}); }).number, errors::kShape);
  EXPECT_EQ(numbers(v), (Numbers{0, 0}));
  for (const auto& component : table.values()) EXPECT_EQ(component.sum().item<float>(), 0);
}

TEST_F(VariableTest, AssignmentsChangeTheTensorsThatModelsHold) {
  Variable v = strategy.make_variable(at::ones({2}), {.aggregation = Aggregation::Sum});
  const at::Tensor held = v.values()[1];
  const auto version = held._version();
  v.assign(at::full({2}, 5.0));
  EXPECT_TRUE(held.is_same(v.values()[1]));
  EXPECT_EQ(held[0].item<float>(), 5);
  EXPECT_GT(held._version(), version) << "a stale backward must notice";
  EXPECT_TRUE(held.is_leaf());
}

TEST_F(VariableTest, AssignmentsAreNotPartOfTheGraph) {
  Variable v = make(Aggregation::Sum);
  at::Tensor x = at::ones({}).requires_grad_();
  strategy.run([&] { v.assign(x.mul(my_id() + 1)); });
  for (const auto& component : v.values()) EXPECT_TRUE(component.is_leaf());
  EXPECT_EQ(numbers(v), (Numbers{3, 3}));
}

TEST_F(VariableTest, GradientsGoToTheOwnComponent) {
  const Variable v = strategy.make_variable(at::ones({2}));
  strategy.run([&] { (v * at::full({2}, my_id() + 1.0)).sum().backward(); });
  for (std::size_t k = 0; k < 2; ++k) EXPECT_EQ(v.values()[k].grad()[0].item<float>(), static_cast<float>(k + 1));
}

TEST_F(VariableTest, ReadingBackIsOptional) {
  Variable silent = make(Aggregation::None, Synchronization::OnRead);
  EXPECT_EQ(error_of([&] { silent.assign(2); }).number, errors::kVariableMode);
  EXPECT_FALSE(silent.assign(3, ReadBack::No).defined());
  EXPECT_EQ(numbers(silent), (Numbers{3, 3}));
  EXPECT_EQ(make(Aggregation::Sum).assign(4).item<float>(), 4);
}

TEST_F(VariableTest, AnUpdateCallsOncePerComponentFromInsideReplicasToo) {
  Variable v = make(Aggregation::None);
  std::atomic<int> calls = 0;
  const auto add = [&](at::Tensor component, const at::Tensor& delta) {
    ++calls;
    EXPECT_TRUE(in_cross_replica_context());
    EXPECT_TRUE(v.handle().is_same(component));
    v.assign_add(delta);  // the component that is being updated, and no other
    return component.item<float>();
  };
  const auto deltas = PerReplica<at::Tensor>({at::ones({}), at::full({}, 2.0)});
  const auto results = strategy.extended().update(v, add, deltas);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(results.values(), (std::vector{1.0f, 2.0f}));
  strategy.run([&](const at::Tensor& mine) { strategy.extended().update(v, add, mine); }, deltas);
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(numbers(v), (Numbers{2, 4}));
}

TEST_F(VariableTest, AnUpdateWithTooFewValuesWritesNothing) {
  Variable v = make(Aggregation::None);
  const auto add = [](at::Tensor component, const at::Tensor& delta) { component.add_(delta); };
  const auto one = PerReplica<at::Tensor>({at::ones({})});
  EXPECT_EQ(error_of([&] { strategy.extended().update(v, add, one); }).number, errors::kComponent);
  EXPECT_EQ(numbers(v), (Numbers{0, 0}));
  int calls = 0;
  const auto count = [&](const at::Tensor&) { ++calls; };
  EXPECT_EQ(error_of([&] { strategy.extended().update_non_slot(strategy.devices(), count, one); }).number,
            errors::kComponent);
  EXPECT_EQ(calls, 0);
  const Devices first{strategy.devices()[0]};
  const auto two = PerReplica<at::Tensor>({at::ones({}), at::ones({})});
  strategy.extended().update_non_slot(first, count, two);
  EXPECT_EQ(calls, 1) << "fewer devices than replicas";
}

// ---------------------------------------------------------------------------------------------------------------------
// Strictness

TEST(StrictVariables, MayDoWhatKeepsThemEqual) {
  MirroredStrategy strict({.devices = test_devices(2), .strict = true});
  Variable none = strict.make_variable(at::zeros({}));
  Variable sum = strict.make_variable(at::zeros({}), {.aggregation = Aggregation::Sum});
  Variable own = strict.make_variable(at::zeros({}),
                                      {.synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum});
  none.assign(1);
  none.assign(Mirrored<at::Tensor>({at::ones({}), at::ones({})}));
  strict.extended().update(none, [](at::Tensor v) { v.add_(1); });
  EXPECT_EQ(numbers(none), (Numbers{2, 2}));
  strict.run([&] {
    sum.assign_add(at::ones({}));
    own.assign(at::full({}, static_cast<double>(my_id())));
  });
  EXPECT_EQ(numbers(sum), (Numbers{2, 2}));
  EXPECT_EQ(numbers(own), (Numbers{0, 1}));
}

TEST_F(VariableTest, ThatAreNotStrictMayDriftApart) {
  Variable v = make(Aggregation::None);
  strategy.run([&] { v.assign(at::full({}, static_cast<double>(my_id()))); });
  EXPECT_EQ(numbers(v), (Numbers{0, 1}));
  v.assign(PerReplica<at::Tensor>({at::full({}, 5.0), at::full({}, 6.0)}));
  EXPECT_EQ(numbers(v), (Numbers{5, 6}));
  EXPECT_EQ(v.read().item<float>(), 5);
}

// ---------------------------------------------------------------------------------------------------------------------
// Checkpoints

struct Checkpoint {
  Synchronization when;
  Aggregation aggregation;
  at::ScalarType type;
  double saved;       ///< of components 3 and 4
  Numbers restored3;  ///< that value in three components
};

TEST_F(VariableTest, CheckpointsHoldOneValueForAnyNumberOfReplicas) {
  const Checkpoint rows[] = {
      {Synchronization::OnWrite, Aggregation::None, at::kFloat, 3, {3, 3, 3}},
      {Synchronization::OnWrite, Aggregation::Sum, at::kLong, 3, {3, 3, 3}},
      {Synchronization::OnRead, Aggregation::OnlyFirstReplica, at::kFloat, 3, {3, 3, 3}},
      {Synchronization::OnRead, Aggregation::Mean, at::kFloat, 3.5, {3.5, 3.5, 3.5}},
      {Synchronization::OnRead, Aggregation::Sum, at::kDouble, 7, {7.0 / 3, 7.0 / 3, 7.0 / 3}},
      {Synchronization::OnRead, Aggregation::Sum, at::kInt, 7, {3, 2, 2}},
  };
  for (const auto& row : rows) {
    const Variable v = make(row.aggregation, row.when, row.type);
    set(v, {3, 4});
    const at::Tensor saved = v.state();
    EXPECT_EQ(saved.item<double>(), row.saved);
    EXPECT_FALSE(saved.requires_grad());
    EXPECT_FALSE(saved.is_alias_of(v.values()[0]));
    for (const int replicas : {1, 2, 3}) {
      MirroredStrategy other(on_devices(replicas));
      Variable restored =
          other.make_variable(at::zeros({}, row.type), {.synchronization = row.when, .aggregation = row.aggregation});
      restored.load_state(saved);
      EXPECT_DOUBLE_EQ(restored.state().item<double>(), row.saved) << "over " << replicas;
      if (replicas == 3) {
        EXPECT_EQ(numbers(restored), row.restored3);
      }
    }
    Variable plain(at::zeros({}, row.type));
    plain.load_state(saved);
    EXPECT_EQ(plain.read().item<double>(), row.saved);
  }
}

TEST_F(VariableTest, RestoringWorksInsideTheScopeAndInMergeFunctions) {
  Variable v = make(Aggregation::Sum);
  {
    const auto scope = strategy.scope();
    v.load_state(at::full({}, 2.0));
  }
  EXPECT_EQ(numbers(v), (Numbers{2, 2}));
  strategy.run([&] { get_replica_context().merge_call([&](Strategy&) { v.load_state(at::full({}, 4.0)); }); });
  EXPECT_EQ(numbers(v), (Numbers{4, 4}));
}

// ---------------------------------------------------------------------------------------------------------------------
// Synchronising inside replicas

TEST_F(VariableTest, InASyncOnReadScopeReplicasSeeTheWhole) {
  const Variable sum = make(Aggregation::Sum, Synchronization::OnRead);
  const Variable mean = make(Aggregation::Mean, Synchronization::OnRead);
  const Variable first = make(Aggregation::OnlyFirstReplica, Synchronization::OnRead);
  for (const auto& v : {sum, mean, first}) set(v, {1, 3});
  strategy.run([&] {
    const float own = my_id() == 0 ? 1 : 3;
    EXPECT_EQ(at::Tensor(sum).item<float>(), own);
    {
      const SyncOnReadScope outer;
      const SyncOnReadScope inner;
      EXPECT_EQ(at::Tensor(sum).item<float>(), 4);
      EXPECT_EQ(at::Tensor(mean).item<float>(), 2);
      EXPECT_EQ(at::Tensor(first).item<float>(), 1);
      EXPECT_EQ((sum + 10).item<float>(), 14);
      EXPECT_EQ(error_of([&] { sum.read(); }).code, Code::Unimplemented);
    }
    EXPECT_EQ(at::Tensor(sum).item<float>(), own);
    EXPECT_EQ(sum.read().item<float>(), own);
  });
  EXPECT_EQ(sum.read().item<float>(), 4);
}

TEST_F(VariableTest, ASyncOnReadScopeAroundARunHoldsInEveryReplica) {
  const Variable sum = make(Aggregation::Sum, Synchronization::OnRead);
  set(sum, {1, 3});
  const SyncOnReadScope outside;
  strategy.run([&] { EXPECT_EQ(at::Tensor(sum).item<float>(), 4); });
}

}  // namespace
}  // namespace lockstep
