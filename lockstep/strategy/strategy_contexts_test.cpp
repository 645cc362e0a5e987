#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <future>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "tests/support/replicas.h"
#include "tests/support/run_test.h"
#include "tests/support/same_bits.h"

// Which context a thread is in, and what replicas inherit from the caller.
namespace lockstep {
namespace {

class ContextTest : public RunTest {};

INSTANTIATE_TEST_SUITE_P(Replicas, ContextTest, testing::Values(1, 2, 3, 4, 7));

/// One letter per context: default, cross-replica, replica, update.
char context_here() {
  if (in_cross_replica_context() == in_replica_context()) return '?';
  if (!has_strategy()) return in_replica_context() ? 'd' : '?';
  if (in_replica_context()) return current_component() >= 0 ? 'r' : '?';
  return current_component() >= 0 ? 'u' : 'x';
}

TEST_P(ContextTest, EveryContextIsEnteredAndLeft) {
  EXPECT_EQ(context_here(), 'd');
  EXPECT_TRUE(get_strategy().is_default());
  {
    const auto outer = strategy.scope();
    EXPECT_EQ(context_here(), 'x');
    EXPECT_EQ(&get_strategy(), &strategy);
    const auto inner = strategy.scope();
    const Variable v(at::zeros({}));
    EXPECT_EQ(context_here(), 'x');
    strategy.run([&] {
      EXPECT_EQ(context_here(), 'r');
      EXPECT_EQ(&get_strategy(), &strategy);
      get_replica_context().merge_call([&](Strategy&) {
        EXPECT_EQ(context_here(), 'x');
        strategy.extended().update(v, [](const at::Tensor&) { EXPECT_EQ(context_here(), 'u'); });
        EXPECT_EQ(context_here(), 'x');
        strategy.run([] { EXPECT_EQ(context_here(), 'r'); });
        EXPECT_EQ(context_here(), 'x');
      });
      EXPECT_EQ(context_here(), 'r');
    });
    EXPECT_EQ(context_here(), 'x');
  }
  EXPECT_EQ(context_here(), 'd');
}

TEST_P(ContextTest, ContextsAreLeftWhenFunctionsThrow) {
  EXPECT_THROW(strategy.run([] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(context_here(), 'd');
  EXPECT_THROW(strategy.run([] {
    get_replica_context().merge_call([](Strategy& s) { s.run([] { throw std::runtime_error("no"); }); });
  }),
               std::runtime_error);
  EXPECT_EQ(context_here(), 'd');
  expect_usable();
}

TEST(Contexts, AStrategyPrintsWhatItIs) {
  std::ostringstream text;
  text << MirroredStrategy(on_cpus(2)) << "; " << get_strategy();
  EXPECT_EQ(text.str(), "MirroredStrategy: 2 replicas on CPU:0, CPU:1; the default strategy: 1 replica on CPU:0");
}

TEST(Contexts, ScopesOfOneStrategyMayEndInAnyOrder) {
  MirroredStrategy strategy(on_devices(2));
  auto first = std::make_unique<Scope>(strategy);
  auto second = std::make_unique<Scope>(strategy);
  first.reset();
  EXPECT_EQ(&get_strategy(), &strategy);
  EXPECT_TRUE(in_cross_replica_context());
  second.reset();
  EXPECT_FALSE(has_strategy());
  EXPECT_TRUE(in_replica_context());
}

TEST(Contexts, AThreadStartedInsideAScopeOrReplicaBeginsInTheDefaultContext) {
  MirroredStrategy strategy(on_devices(2));
  const auto scope = strategy.scope();
  EXPECT_EQ(std::async(std::launch::async, context_here).get(), 'd');
  strategy.run([] { EXPECT_EQ(std::async(std::launch::async, context_here).get(), 'd'); });
}

TEST(Contexts, TheDefaultContextIsOneReplica) {
  ReplicaContext& replica = get_replica_context();
  EXPECT_EQ(replica.replica_id_in_sync_group(), 0);
  EXPECT_EQ(replica.num_replicas_in_sync(), 1);
  EXPECT_TRUE(same_bits(replica.all_reduce(ReduceOp::Sum, at::ones({3})), at::ones({3})));
  EXPECT_TRUE(same_bits(replica.all_gather(at::ones({3}), 0), at::ones({3})));
  const int doubled = replica.merge_call(
      [](Strategy& strategy, const PerReplica<int>& x) {
        EXPECT_TRUE(strategy.is_default());
        EXPECT_TRUE(in_cross_replica_context());
        return 2 * x[0];
      },
      21);
  EXPECT_EQ(doubled, 42);
}
// ---------------------------------------------------------------------------------------------------------------------
// What replicas inherit from the caller

TEST_P(ContextTest, GradModeIsTheCallers) {
  const auto modes = [&] { return strategy.run([] { return at::GradMode::is_enabled(); }); };
  for (const bool enabled : modes()) EXPECT_TRUE(enabled);
  {
    const at::NoGradGuard no_grad;
    for (const bool enabled : modes()) EXPECT_FALSE(enabled);
  }
  for (const bool enabled : modes()) EXPECT_TRUE(enabled);
}

TEST_P(ContextTest, InferenceModeIsTheCallers) {
  const auto modes = [&] { return strategy.run([] { return at::ones({}).is_inference(); }); };
  {
    const c10::InferenceMode inference;
    for (const bool on : modes()) EXPECT_TRUE(on);
    const auto sums = strategy.run([] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({3})); });
    for (const auto& sum : sums) EXPECT_EQ(sum.sum().item<float>(), 3.0f * static_cast<float>(replicas));
  }
  for (const bool on : modes()) EXPECT_FALSE(on);
}

TEST_P(ContextTest, BackwardRunsOnTheReplicasOwnThread) {
  strategy.run([] {
    at::Tensor x = at::ones({2}).requires_grad_();
    std::thread::id seen;
    int replica = -1;
    x.register_hook([&](const at::Tensor&) {
      seen = std::this_thread::get_id();
      replica = my_id();
    });
    x.mul(2).sum().backward();
    EXPECT_EQ(seen, std::this_thread::get_id());
    EXPECT_EQ(replica, my_id());
  });
}
}  // namespace
}  // namespace lockstep
