#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/_standard_gamma.h>
#include <ATen/ops/alpha_dropout.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/binomial.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/feature_dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/poisson.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/rrelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/strategy/default_strategy.h"
#include "lockstep/strategy/replica_random.h"
#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"
#include "tests/support/watchdog.h"

// Random numbers: each replica has a stream of its own, which nothing but its own draws moves on.
namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSeed = 20240229;

MirroredOptions seeded(int replicas, std::uint64_t seed = kSeed) {
  return {.devices = test_devices(replicas), .seed = seed};
}

at::Tensor shared_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

struct Draw {
  const char* name;
  std::function<at::Tensor()> draw;
};

void PrintTo(const Draw& draw, std::ostream* out) { *out << draw.name; }

const Draw kDraws[] = {
    {"rand", [] { return at::rand({50}); }},
    {"randn", [] { return at::randn({50}); }},
    {"randint", [] { return at::randint(0, 1000, {50}); }},
    {"randperm", [] { return at::randperm(50); }},
    {"rand_like", [] { return at::rand_like(at::ones({50}, at::kDouble)); }},
    {"randn_like", [] { return at::randn_like(at::ones({50}, at::kHalf)); }},
    {"bernoulli", [] { return at::bernoulli(at::full({50}, 0.5)); }},
    {"bernoulli_", [] { return at::zeros({50}).bernoulli_(0.3); }},
    {"multinomial", [] { return at::multinomial(at::ones({100}), 50, true); }},
    {"multinomial_without_replacement", [] { return at::multinomial(at::ones({100}), 50); }},
    {"normal", [] { return at::normal(at::zeros({50}), at::ones({50})); }},
    {"normal_", [] { return at::zeros({50}).normal_(1, 2); }},
    {"uniform_", [] { return at::zeros({50}, at::kDouble).uniform_(-1, 1); }},
    {"random_", [] { return at::zeros({50}, at::kLong).random_(0, 1000); }},
    {"exponential_", [] { return at::zeros({50}).exponential_(); }},
    {"cauchy_", [] { return at::zeros({50}).cauchy_(); }},
    {"log_normal_", [] { return at::zeros({50}).log_normal_(); }},
    {"geometric_", [] { return at::zeros({50}).geometric_(0.1); }},
    {"poisson", [] { return at::poisson(at::full({50}, 20.0)); }},
    {"binomial", [] { return at::binomial(at::full({50}, 100.0), at::full({50}, 0.5)); }},
    {"gamma", [] { return at::_standard_gamma(at::full({50}, 2.0)); }},
    {"dropout", [] { return at::dropout(at::ones({200}), 0.5, true); }},
    {"native_dropout", [] { return std::get<0>(at::native_dropout(at::ones({200}), 0.5, true)); }},
    {"dropout_with_gradient", [] { return at::dropout(at::ones({200}).requires_grad_(), 0.5, true).detach(); }},
    {"feature_dropout",
     [] {
       return at::feature_dropout(at::ones({4, 50, 2}), 0.5, true);
     }},
    {"alpha_dropout", [] { return at::alpha_dropout(at::ones({200}), 0.5, true); }},
    {"rrelu", [] { return at::rrelu(at::full({50}, -1.0), 0.1, 0.9, true); }},
    {"attention_dropout",
     [] {
       const at::Tensor x = at::ones({1, 1, 16, 8});
       return at::scaled_dot_product_attention(x, x, x, {}, 0.5);
     }},
    {"large_randn", [] { return at::randn({100'000}); }},
};

class DrawTest : public testing::TestWithParam<Draw> {};
INSTANTIATE_TEST_SUITE_P(Operators, DrawTest, testing::ValuesIn(kDraws),
                         [](const auto& draw) { return draw.param.name; });

TEST_P(DrawTest, ComesFromTheReplicasOwnStream) {
  const auto draw_twice = [&] { return std::pair(GetParam().draw(), GetParam().draw()); };
  at::manual_seed(kSeed);
  const auto plain = draw_twice();
  ASSERT_FALSE(same_bits(plain.first, plain.second)) << "not random enough for this test";

  at::manual_seed(1);
  MirroredStrategy strategy(seeded(3));
  const at::Tensor shared = shared_state();
  const auto draws = strategy.run(draw_twice);
  EXPECT_TRUE(same_bits(shared_state(), shared)) << "the shared generator was used";
  for (std::size_t k = 0; k < 3; ++k) {
    EXPECT_FALSE(same_bits(draws[k].first, plain.first)) << "initial weights are drawn from these numbers";
    for (std::size_t j = 0; j < k; ++j)
      EXPECT_FALSE(same_bits(draws[j].first, draws[k].first)) << "replicas " << j << " and " << k;
  }
  MirroredStrategy again(seeded(3));
  const auto repeated = again.run(draw_twice);
  for (std::size_t k = 0; k < 3; ++k) {
    EXPECT_TRUE(same_bits(draws[k].first, repeated[k].first));
    EXPECT_TRUE(same_bits(draws[k].second, repeated[k].second));
  }
}

TEST_P(DrawTest, OfOneReplicaIsThePlainPrograms) {
  at::manual_seed(kSeed);
  const at::Tensor before = GetParam().draw();
  const at::Tensor inside = GetParam().draw();
  const at::Tensor after = GetParam().draw();

  at::manual_seed(kSeed);
  MirroredStrategy strategy(on_devices(1));
  EXPECT_TRUE(same_bits(GetParam().draw(), before));
  EXPECT_TRUE(same_bits(strategy.run(GetParam().draw)[0], inside));
  EXPECT_TRUE(same_bits(GetParam().draw(), after));
}

/// A bit of everything, in an order that depends on the replica.
at::Tensor draw_all(int id) {
  std::vector<at::Tensor> drawn;
  for (std::size_t i = 0; i < std::size(kDraws) - 1; ++i) {
    drawn.push_back(
        kDraws[(i * static_cast<std::size_t>(2 * id + 1)) % std::size(kDraws)].draw().to(at::kDouble).flatten());
  }
  return at::cat(drawn);
}

TEST(Random, SameSeedSameBitsFiftyTimesUnderLoad) {
  const Watchdog watchdog(120s, "fifty repetitions");
  std::atomic<bool> over = false;
  std::vector<std::future<void>> load;
  for (int i = 0; i < 2; ++i) {
    load.push_back(std::async(std::launch::async, [&] {
      while (!over) at::rand({100});  // the shared generator is in use as well
    }));
  }
  const auto train = [] {
    MirroredStrategy strategy(seeded(4));
    std::vector<at::Tensor> drawn;
    for (int step = 0; step < 3; ++step) {
      const auto draws = strategy.run([] {
        at::Tensor numbers = draw_all(my_id());
        return get_replica_context().all_gather(at::cat({numbers, at::rand({3}, at::kDouble)}).slice(0, 0, 500), 0);
      });
      drawn.insert(drawn.end(), draws.begin(), draws.end());
    }
    return at::cat(drawn);
  };
  const at::Tensor first = train();
  for (int repetition = 1; repetition < 50; ++repetition)
    ASSERT_TRUE(same_bits(train(), first)) << "repetition " << repetition;
  over = true;
  for (auto& thread : load) thread.get();
}

TEST(Random, StreamsGoOnFromRunToRunAndIntoNestedRuns) {
  MirroredStrategy strategy(seeded(2));
  // In pieces: what a GPU draws in one call is not what it draws in several.
  const auto whole = strategy.run([] { return at::cat({at::rand({10}), at::rand({10}), at::rand({10})}); });
  MirroredStrategy again(seeded(2));
  const auto first = again.run([] { return at::rand({10}); });
  const auto rest = again.run([] {
    const at::Tensor second = at::rand({10});
    const at::Tensor third =
        get_replica_context().merge_call([](Strategy& s) { return s.run([] { return at::rand({10}); }); });
    return at::cat({second, third});
  });
  for (std::size_t k = 0; k < 2; ++k) EXPECT_TRUE(same_bits(at::cat({first[k], rest[k]}), whole[k]));
}

TEST(Random, MergeFunctionsDrawFromTheSharedGeneratorAndFromNoReplicas) {
  MirroredStrategy strategy(seeded(2));
  const auto plain = strategy.run([] { return at::cat({at::rand({10}), at::rand({10})}); });

  at::manual_seed(kSeed);
  const at::Tensor shared = at::rand({4});
  MirroredStrategy again(seeded(2));
  const auto interrupted = again.run([&] {
    const at::Tensor first = at::rand({10});
    const at::Tensor merged = get_replica_context().merge_call([](Strategy&) { return at::rand({4}); });
    EXPECT_TRUE(same_bits(merged, shared));
    return at::cat({first, at::rand({10})});
  });
  for (std::size_t k = 0; k < 2; ++k) EXPECT_TRUE(same_bits(interrupted[k], plain[k]));
}

TEST(Random, TheCallersNumbersGoOnAsIfNothingHadRun) {
  at::manual_seed(3);
  const at::Tensor whole = at::cat({at::rand({10}), at::rand({10})});
  at::manual_seed(3);
  const at::Tensor before = at::rand({10});
  MirroredStrategy strategy(on_devices(3));
  strategy.run([] { at::rand({7}); });
  EXPECT_THROW(strategy.run([] {
    at::rand({7});
    throw 1;
  }),
               int);
  EXPECT_TRUE(same_bits(at::cat({before, at::rand({10})}), whole));
}

TEST(Random, AGeneratorThatIsGivenIsTheOneThatIsUsed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const at::Tensor expected = at::rand({10}, generator, at::kCPU);
  MirroredStrategy strategy(seeded(2));
  const auto plain = strategy.run([] { return at::rand({5}); });
  MirroredStrategy again(seeded(2));
  const auto drawn = again.run([&] {
    EXPECT_TRUE(same_bits(at::rand({10}, at::make_generator<at::CPUGeneratorImpl>(7), at::kCPU), expected));
    return at::rand({5});
  });
  for (std::size_t k = 0; k < 2; ++k) EXPECT_TRUE(same_bits(drawn[k], plain[k])) << "the own stream was moved on";
}

TEST(Random, NumbersDrawnInsideBackwardAreTheReplicas) {
  MirroredStrategy strategy(seeded(2));
  const auto plain = strategy.run([] { return at::rand({10}); });
  MirroredStrategy again(seeded(2));
  const auto drawn = again.run([] {
    at::Tensor seen;
    at::Tensor x = at::ones({2}).requires_grad_();
    x.register_hook([&](const at::Tensor&) { seen = at::rand({10}); });
    x.sum().backward();
    return seen;
  });
  for (std::size_t k = 0; k < 2; ++k) EXPECT_TRUE(same_bits(drawn[k], plain[k]));
}

TEST(Random, TheSeedIsTheOptionElseWhatManualSeedWasGiven) {
  at::manual_seed(11);
  EXPECT_EQ(MirroredStrategy(on_devices(2)).seed(), 11u);
  EXPECT_EQ(MirroredStrategy(seeded(2, 12)).seed(), 12u);
  at::manual_seed(11);
  const auto numbers = [](MirroredStrategy&& strategy) { return strategy.run([] { return at::rand({10}); }); };
  const auto inherited = numbers(MirroredStrategy(on_devices(2)));
  const auto asked = numbers(MirroredStrategy(seeded(2, 11)));
  const auto other = numbers(MirroredStrategy(seeded(2, 12)));
  for (std::size_t k = 0; k < 2; ++k) {
    EXPECT_TRUE(same_bits(inherited[k], asked[k]));
    EXPECT_FALSE(same_bits(inherited[k], other[k]));
  }
}

TEST(Random, SetSeedStartsTheNumbersAgain) {
  MirroredStrategy strategy(seeded(2, 5));
  const auto draw = [&] { return strategy.run([] { return at::rand({10}); }); };
  const auto first = draw();
  const auto second = draw();
  strategy.set_seed(5);
  const auto again = draw();
  strategy.set_seed(6);
  const auto other = draw();
  EXPECT_EQ(strategy.seed(), 6u);
  for (std::size_t k = 0; k < 2; ++k) {
    EXPECT_TRUE(same_bits(first[k], again[k]));
    EXPECT_FALSE(same_bits(first[k], second[k]));
    EXPECT_FALSE(same_bits(first[k], other[k]));
  }
  EXPECT_EQ(error_of([&] { strategy.run([&] { strategy.set_seed(7); }); }).number, errors::kWrongContext);
}

/// What is logged when `between` is called between two runs that draw numbers.
std::vector<std::string> logged_between_draws(const std::function<void(MirroredStrategy&)>& between) {
  at::manual_seed(5);
  MirroredStrategy strategy(on_devices(2));
  LoggedLines log;
  strategy.run([] { at::rand({10}); });
  for (int i = 0; i < 2; ++i) {
    between(strategy);
    strategy.run([] { at::rand({10}); });
  }
  return log.lines();
}

TEST(Random, ASeedBetweenRunsIsWarnedOfOnceIfReplicasDraw) {
  for (const std::uint64_t seed : {5u, 6u}) {
    const auto lines = logged_between_draws([&](auto&) { at::manual_seed(seed); });
    ASSERT_EQ(lines.size(), 1u) << "seed " << seed;
    EXPECT_NE(lines[0].find("strategy.set_seed(seed)"), std::string::npos) << lines[0];
  }
  EXPECT_TRUE(logged_between_draws([](auto& strategy) { strategy.set_seed(5); }).empty());
  EXPECT_TRUE(logged_between_draws([](auto&) {
                at::manual_seed(6);
                at::rand({3});  // it was meant for these
              }).empty());
  const auto after_a_run_without_draws = [](auto& strategy) {
    at::manual_seed(6);
    strategy.run([] { at::zeros({3}); });
  };
  EXPECT_EQ(logged_between_draws(after_a_run_without_draws).size(), 1u);
}

TEST(Random, ASeedBetweenMakingAndTheFirstRunIsWarnedOfIfItIsAnother) {
  for (const std::uint64_t seed : {5u, 6u}) {
    at::manual_seed(5);
    MirroredStrategy strategy(on_devices(2));
    at::manual_seed(seed);
    LoggedLines log;
    strategy.run([] { at::rand({10}); });
    EXPECT_EQ(log.lines().size(), seed == 5u ? 0u : 1u);
  }
}

/// The number that LibTorch's own generator draws next after `seed`.
at::Tensor first_after(std::uint64_t seed) {
  at::manual_seed(seed);
  return at::rand({5});
}

TEST(Random, TheOptionAndSetSeedSeedLibTorchsGeneratorToo) {
  const at::Tensor five = first_after(5), six = first_after(6);
  for (const int replicas : {1, 2, 3}) {
    MirroredStrategy strategy(seeded(replicas, 5));
    EXPECT_TRUE(same_bits(at::rand({5}), five)) << replicas;
    strategy.set_seed(6);
    EXPECT_TRUE(same_bits(at::rand({5}), six)) << replicas;
    EXPECT_EQ(strategy.seed(), 6u);
  }
  default_strategy().set_seed(5);
  EXPECT_TRUE(same_bits(at::rand({5}), five));
}

TEST(Random, SetSeedInAMergeFunctionIsNotASeedInsideAReplica) {
  const at::Tensor six = first_after(6);
  for (const int replicas : {1, 2}) {
    MirroredStrategy strategy(seeded(replicas, 5));
    strategy.run([] { get_replica_context().merge_call([](Strategy& inner) { inner.set_seed(6); }); });
    EXPECT_TRUE(same_bits(at::rand({5}), six)) << replicas;
  }
}

TEST(Random, OneReplicaMayBeSeededAnywhereWithoutAWarning) {
  const at::Tensor five = first_after(5), six = first_after(6);
  MirroredStrategy strategy(seeded(1, 7));
  const LoggedLines log;
  const auto draw = [] { return at::rand({5}); };
  for (int i = 0; i < 2; ++i) {
    at::manual_seed(5);
    EXPECT_EQ(strategy.seed(), 5u);
    EXPECT_TRUE(same_bits(strategy.run(draw)[0], five)) << "between runs";
  }
  const auto seeded_inside = strategy.run([&] {
    at::manual_seed(6);
    return draw();
  });
  EXPECT_TRUE(same_bits(seeded_inside[0], six));
  EXPECT_TRUE(log.lines().empty()) << log.lines()[0];
}

TEST(Random, AReplicasStreamDoesNotDependOnHowManyThereAre) {
  const auto two = MirroredStrategy(seeded(2)).run([] { return at::rand({10}); });
  const auto five = MirroredStrategy(seeded(5)).run([] { return at::rand({10}); });
  for (std::size_t k = 0; k < 2; ++k) EXPECT_TRUE(same_bits(two[k], five[k]));
}

TEST(Random, NeighbouringSeedsShareNoStream) {
  std::vector<at::Tensor> streams;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (const auto& stream : MirroredStrategy(seeded(4, seed)).run([] { return at::rand({10}); })) {
      for (const auto& other : streams) ASSERT_FALSE(same_bits(stream, other)) << "seed " << seed;
      streams.push_back(stream);
    }
  }
}

TEST(Random, InitialValuesOfVariablesAreEqualOnAllReplicas) {
  MirroredStrategy strategy(seeded(3));
  const auto scope = strategy.scope();
  const Variable outside(Variable::Initializer([] { return at::randn({4}); }));
  const auto inside = strategy.run([] { return Variable(Variable::Initializer([] { return at::randn({4}); })); });
  for (const auto& variable : {outside, inside[0]}) {
    for (const auto& component : variable.values()) EXPECT_TRUE(same_bits(component, variable.values()[0]));
  }
  EXPECT_TRUE(inside[0].is_same(inside[2]));
}

TEST(RngSnapshot, RestoresNumbersThatAreDrawnAgain) {
  const std::vector<ReplicaGenerators> replicas{make_generators(at::kCPU, 5), make_generators(at::kCPU, 6)};
  const auto draw = [&] {
    std::vector<at::Tensor> drawn{at::randn({3}, at::kCPU)};
    for (const ReplicaGenerators& replica : replicas)
      drawn.push_back(at::randn({3}, replica.cpu, at::TensorOptions(at::kCPU)));
    return at::cat(drawn);
  };
  draw();  // three numbers leave one of a pair behind
  const RngSnapshot kept({at::detail::getDefaultCPUGenerator(), replicas[0].cpu, replicas[1].cpu});
  const at::Tensor first = draw();
  EXPECT_FALSE(same_bits(draw(), first));
  kept.restore();
  EXPECT_TRUE(same_bits(draw(), first));
}

}  // namespace
}  // namespace lockstep
