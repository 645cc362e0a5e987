#include "lockstep/strategy/captured_step.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"

// On CPUs a captured step is a plain run; tests/gpu has the rest.
namespace lockstep {
namespace {

struct Row {
  at::Tensor x;
  std::int64_t label = 0;
};

TEST(CapturedStep, IsAPlainRunOnCpus) {
  MirroredStrategy strategy(on_cpus(2));
  int calls = 0;
  auto step = strategy.capture([&](const at::Tensor& x) {
    if (get_replica_context().replica_id_in_sync_group() == 0) ++calls;
    return x.add(get_replica_context().replica_id_in_sync_group());
  });
  EXPECT_FALSE(step.was_replayed());
  for (int i = 0; i < 5; ++i) {
    const PerReplica<at::Tensor> sums = step(at::full({2}, i));
    for (std::size_t k = 0; k < 2; ++k) EXPECT_EQ(sums[k][0].item<double>(), i + static_cast<int>(k));
  }
  EXPECT_EQ(calls, 5);
  EXPECT_FALSE(step.was_replayed());
  EXPECT_EQ(step.reason(), "its replicas are on CPUs");
}

TEST(CapturedStep, TakesWhatRunTakes) {
  MirroredStrategy strategy(on_devices(2));
  const PerReplica<Row> rows(std::vector<Row>{{at::full({1}, 3.0), 1}, {at::full({1}, 4.0), 2}});
  auto labels = strategy.capture([](const Row& mine, int factor) { return factor * mine.label; });
  EXPECT_EQ(labels(rows, 10)[1], 20);
  auto nothing = strategy.capture([](const std::unique_ptr<int>& shared) { EXPECT_EQ(*shared, 7); });
  nothing(std::make_unique<int>(7));
  auto named = strategy.capture([](const std::map<std::string, at::Tensor>& by_name) { return by_name; });
  EXPECT_EQ(named(std::map<std::string, at::Tensor>{{"a", rows[0].x}})[1].at("a").item<double>(), 3.0);
}

TEST(CapturedStep, ThrowsWhatTheStepThrows) {
  MirroredStrategy strategy(on_devices(2));
  auto step = strategy.capture([] { throw std::out_of_range("too far"); });
  EXPECT_THROW(step(), std::out_of_range);
}

TEST(CapturedStep, RefusesToRunWithoutItsStrategy) {
  auto strategy = std::make_unique<MirroredStrategy>(on_devices(1));
  auto step = strategy->capture([] {});
  auto moved = std::move(step);
  moved();
  strategy.reset();
  EXPECT_THROW(moved(), FailedPrecondition);
}

}  // namespace
}  // namespace lockstep
