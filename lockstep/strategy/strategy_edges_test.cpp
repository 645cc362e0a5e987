#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/sanitizers.h"
#include "lockstep/strategy/detail/one_thread.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"

// Corners where values, variables and contexts meet.
namespace lockstep {
namespace {

class Edges : public testing::Test {
 protected:
  const LogSilence quiet;
  MirroredStrategy strategy{{.devices = test_devices(2)}};
};

TEST_F(Edges, ComponentsOnDifferentDevicesAreRefused) {
  const PerReplica<at::Tensor> mixed({at::ones({2}), at::ones({2}, at::kMeta)});
  EXPECT_THROW(strategy.reduce(ReduceOp::Sum, mixed), InvalidArgument);
  Variable sum = strategy.make_variable(at::zeros({2}), {.aggregation = Aggregation::Sum});
  EXPECT_THROW(strategy.run([&](const at::Tensor& mine) { sum.assign(mine); }, mixed), InvalidArgument);
}

TEST(OwnGpu, ATensorOfAnotherGpuIsRefusedInAMeeting) {
  const at::Device first(at::kCUDA, 0), second(at::kCUDA, 1), cpu(at::kCPU);
  const std::string said =
      message_of<InvalidArgument>([&] { require_own_gpu("all_reduce", /*own=*/second, /*given=*/first); });
  EXPECT_NE(said.find("all_reduce needs a tensor on the replica's own GPU, cuda:1, got one on cuda:0"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("value.to(ls::get_replica_context().device())"), std::string::npos) << said;
  for (const at::Device& own : {first, cpu}) {
    EXPECT_NO_THROW(require_own_gpu("all_reduce", own, own));
    EXPECT_NO_THROW(require_own_gpu("all_reduce", own, cpu));  // is added up on the host
    EXPECT_NO_THROW(require_own_gpu("all_reduce", cpu, own));
  }
}

TEST_F(Edges, AProgramThatWrapsExceptionsStillGetsTheRootCause) {
  const auto step = [] {
    try {
      if (my_id() == 1) throw std::runtime_error("no data");
      get_replica_context().all_reduce(ReduceOp::Sum, at::ones({1}));
    } catch (const std::exception& e) {
      throw std::runtime_error(std::string("step failed: ") + e.what());
    }
  };
  EXPECT_EQ(message_of<std::runtime_error>([&] { strategy.run(step); }), "step failed: no data");
  EXPECT_EQ(strategy.last_failure()->replica, 1);
}

TEST_F(Edges, AMergeErrorCanBeCaughtOnEveryReplica) {
  const auto sums = strategy.run([&] {
    EXPECT_THROW(
        get_replica_context().merge_call([](Strategy&) { throw InvalidArgument(errors::kStructure, {.what = "no"}); }),
        InvalidArgument);
    return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({})).item<float>();
  });
  EXPECT_EQ(sums[0], 2.0f);
  EXPECT_EQ(sums[1], 2.0f);
}

TEST_F(Edges, ReplicasMustUpdateTheSameVariable) {
  Variable a = strategy.make_variable(at::zeros({}));
  Variable b = strategy.make_variable(at::zeros({}));
  EXPECT_THROW(strategy.run([&] { strategy.extended().update(my_id() == 0 ? a : b, [](at::Tensor w) { w.add_(1); }); }),
               FailedPrecondition);
  EXPECT_EQ(a.read().item<float>(), 0.0f);
}

TEST_F(Edges, ANumberIsNeverSummedWhateverTheOtherReplicasGive) {
  Variable sum = strategy.make_variable(at::zeros({}), {.aggregation = Aggregation::Sum});
  EXPECT_THROW(strategy.run([&] { sum.assign_add(4); }), InvalidArgument);
  EXPECT_THROW(strategy.run([&] { sum.assign_add(my_id() + 3); }), InvalidArgument);
  strategy.run([&] { sum.assign_add(0); });
  EXPECT_EQ(sum.read().item<float>(), 0.0f);
}

TEST_F(Edges, StrictStrategiesRefuseUpdatesThatDifferByReplica) {
  MirroredStrategy strict({.devices = test_devices(2), .strict = true});
  Variable v = strict.make_variable(at::zeros({}));
  const auto add = [](at::Tensor w, const at::Tensor& x) { w.add_(x); };
  EXPECT_THROW(strict.run([&] { strict.extended().update(v, add, at::full({}, my_id() + 1.0)); }), InvalidArgument);
  const auto add_pair = [](at::Tensor w, const std::pair<at::Tensor, int>& x) { w.add_(x.first); };
  EXPECT_THROW(
      strict.extended().update(v, add_pair, std::pair{PerReplica<at::Tensor>({at::ones({}), at::zeros({})}), 1}),
      InvalidArgument);
  EXPECT_EQ(v.values()[0].item<float>(), 0.0f);
  EXPECT_EQ(v.values()[1].item<float>(), 0.0f);
}

TEST_F(Edges, OnlyTheStrategysDevicesTakeNonSlotUpdates) {
  EXPECT_THROW(strategy.extended().update_non_slot({"gpu:5", "gpu:5"}, [] {}), InvalidArgument);
  EXPECT_THROW(strategy.extended().update_non_slot({"cpu:0", "cpu:0"}, [] {}), InvalidArgument);
  int calls = 0;
  strategy.extended().update_non_slot(strategy.extended().non_slot_devices({}), [&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST_F(Edges, MirroredValuesKnowTheDevicesOfTheirComponents) {
  auto& extended = strategy.extended();
  const Devices devices = strategy.devices();
  const auto same = [](int x) { return x; };
  const auto swapped = extended.update_non_slot({devices[1], devices[0]}, same, Mirrored<int>({10, 11}));
  EXPECT_EQ(swapped[0], 11);
  EXPECT_EQ(strategy.run(same, swapped)[1], 11);
  const auto whole = strategy.run([&] { return swapped.get(); });
  EXPECT_EQ(whole[0], 10);
  EXPECT_EQ(swapped.map([](int x) { return 2.0 * x; }).get(), 22.0);
  EXPECT_EQ(extended.update_non_slot({devices[1]}, same, PerReplica<int>({10, 11}))[0], 11);

  const auto second = extended.broadcast_to(at::ones({}), devices[1]);
  ASSERT_TRUE(second.placement());
  EXPECT_EQ(second.placement()->devices, Devices{strategy.devices()[1]});
  EXPECT_EQ(extended.broadcast_to(at::zeros({}), second).placement()->replicas, std::vector<int>{1});
  EXPECT_EQ(extended.batch_reduce_to(ReduceOp::Mean, {{second, devices[0]}})[0].placement(), second.placement());
  EXPECT_FALSE(extended.broadcast_to(at::ones({}), swapped.map(same)).placement()->devices.empty());
  EXPECT_FALSE(extended.broadcast_to(at::ones({}), whole).placement()) << "where the replicas are";
  EXPECT_EQ(extended
                .update_non_slot(
                    {devices[1]}, [](const at::Tensor& x) { return x; }, second)
                .size(),
            1U);
  const Scope scope = strategy.scope();
  Variable variable(at::zeros({}));
  variable.assign(swapped.map([](int x) { return at::full({}, static_cast<float>(x)); }));
  EXPECT_EQ(variable.values()[0].item<int>(), 10);
  EXPECT_EQ(variable.values()[1].item<int>(), 11);
}

TEST_F(Edges, AValueOnOneDeviceIsAPlainValue) {
  auto& extended = strategy.extended();
  const auto second = extended.broadcast_to(at::ones({}), strategy.devices()[1]);
  const auto read = [](const at::Tensor& x) { return x.item<int>(); };
  EXPECT_EQ(strategy.run(read, second)[0], 1);
  EXPECT_EQ(strategy.run([&] { return read(second); })[0], 1);
  EXPECT_EQ(extended.update_non_slot({strategy.devices()[0]}, read, second)[0], 1);
  EXPECT_EQ(strategy.run([&] { return read(get_replica_context().merge_call([&](Strategy&) { return second; })); })[0],
            1);
  const Scope scope = strategy.scope();
  Variable variable(at::zeros({}));
  variable.assign(second);
  EXPECT_EQ(variable.values()[0].item<int>(), 1);
  extended.update(
      variable, [](at::Tensor w, const at::Tensor& x) { w.add_(x); }, second);
  EXPECT_EQ(variable.values()[0].item<int>(), 2);
}

TEST(EdgesOfThree, AValueOnTwoDevicesIsRefusedForTheThird) {
  MirroredStrategy strategy({.devices = test_devices(3)});
  auto& extended = strategy.extended();
  const Devices devices = strategy.devices();
  const auto two = extended.update_non_slot({devices[2], devices[1]}, [] { return at::ones({}); });
  ASSERT_EQ(two.size(), 2U);
  const Scope scope = strategy.scope();
  Variable variable(at::zeros({}));
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { strategy.run([](const at::Tensor&) {}, two); }, [&] { variable.assign(two); },
           [&] { strategy.run([&] { at::Tensor own = two; }); },
           [&] {
             extended.update_non_slot(
                 {devices[0]}, [](const at::Tensor&) {}, two);
           },
           [&] { strategy.run([&] { get_replica_context().merge_call([&](Strategy&) { return two; }); }); }})
    EXPECT_TRUE(contains(error_of(call).text, "without a component on the device of local replica 0"))
        << error_of(call).text;
}

TEST_F(Edges, AScopeThatOutlivesItsStrategyIsNobodys) {
  auto gone = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = test_devices(2)});
  const Scope scope = gone->scope();
  gone.reset();
  EXPECT_FALSE(has_strategy());
  const Variable plain(at::zeros({}));
  EXPECT_FALSE(plain.is_distributed());
}

TEST_F(Edges, WhatAReductionReturnsIsTheCallersOwn) {
  const Variable v = strategy.make_variable(at::ones({}), {.trainable = false});
  strategy.reduce(ReduceOp::Mean, v).add_(1);
  EXPECT_EQ(v.values()[0].item<float>(), 1.0f);
  const at::Tensor given = at::ones({});
  const Variable w = strategy.make_variable(given);
  given.add_(5);
  EXPECT_EQ(w.initial_value().item<float>(), 1.0f);
}

TEST_F(Edges, SavingBelongsOutsideOfReplicas) {
  const Variable v = strategy.make_variable(at::ones({}));
  EXPECT_THROW(strategy.run([&] { v.state(); }), FailedPrecondition);
}

TEST_F(Edges, MemoryOfTensorsMayBeFreedByHand) {
  for (const std::size_t bytes : {100u, 5'000'000u}) {
    void* const memory = c10::GetCPUAllocator()->raw_allocate(bytes);
    ASSERT_NE(memory, nullptr) << bytes;
    std::memset(memory, 1, bytes);
    c10::GetCPUAllocator()->raw_deallocate(memory);
  }
}

#if !defined(LOCKSTEP_ADDRESS_SANITIZER)  // which ends the process instead
TEST_F(Edges, MemoryThatIsNotThereIsLibTorchsError) { EXPECT_THROW(at::empty({std::int64_t{1} << 45}), c10::Error); }
#endif

TEST_F(Edges, AProgramsOwnAllocatorStays) {
  struct Own final : c10::Allocator {
    c10::DataPtr allocate(std::size_t bytes) override { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
    void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  } own;
  c10::Allocator* const before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&own);
  { const MirroredStrategy another({.devices = test_devices(2), .keep_memory = true}); }
  EXPECT_EQ(c10::GetCPUAllocator(), &own);
  c10::SetCPUAllocator(before);
}

TEST_F(Edges, HugeResultsAreOrdinaryTensors) {
  constexpr std::int64_t kElements = 9 << 20;  // 36 MB
  const auto sums = strategy.run(
      [&] { return get_replica_context().all_reduce(ReduceOp::Sum, at::full({kElements}, my_id() + 1.0)); });
  for (const auto& sum : sums) {
    EXPECT_EQ(sum[0].item<float>(), 3.0f);
    EXPECT_EQ(sum[kElements - 1].item<float>(), 3.0f);
  }
  EXPECT_FALSE(sums[0].is_alias_of(sums[1]));
}

TEST_F(Edges, VariablesAreUsedLikeTensors) {
  Variable v = strategy.make_variable(at::full({}, 3.0));
  const Variable w = strategy.make_variable(at::full({}, 2.0));
  EXPECT_EQ((2.0 * v + 1 - w).item<float>(), 5.0f);
  EXPECT_EQ((1 - v).item<float>(), -2.0f);
  EXPECT_EQ((-v / w).item<float>(), -1.5f);
  v.assign(w);
  v.assign_add(std::string("abc").size());
  EXPECT_EQ(v.read().item<float>(), 5.0f);
}

TEST(OneThread, RefusesASecondThreadAndLetsItselfInAgain) {
  std::atomic<const void*> user{nullptr};
  const auto use = [&] { const detail::OneThread one(&user, "reduce"); };
  {
    const detail::OneThread one(&user, "reduce");
    use();
    EXPECT_EQ(error_of([&] { std::async(std::launch::async, use).get(); }).number, errors::kWrongContext);
  }
  std::async(std::launch::async, use).get();
}

TEST(DevicesOfOneStrategy, AreMixedIfSomeAreCpusAndOthersGpus) {
  const auto mixed = [](const std::vector<std::string>& names) {
    return are_mixed(torch_devices(plan_mirrored_devices(names)));
  };
  EXPECT_FALSE(mixed(cpus(3)));
  EXPECT_FALSE(mixed(gpus(2)));
  EXPECT_FALSE(mixed({"gpu:0/0", "gpu:1/0", "gpu:1/1"}));
  EXPECT_TRUE(mixed({"cpu:0", "gpu:0"}));
  EXPECT_TRUE(mixed({"gpu:0/0", "gpu:0/1", "cpu:7"}));
}

TEST(SeveralGpusOfOneProcess, DoNotUseNccl) {
  const auto devices = plan_mirrored_devices(gpus(2));
  EXPECT_NO_THROW(require_way_between(devices, Implementation::Auto));
  EXPECT_NO_THROW(require_way_between(plan_mirrored_devices(logical_gpus(2)), Implementation::Nccl));
  EXPECT_NO_THROW(require_way_between(plan_mirrored_devices(cpus(2)), Implementation::Nccl));
  EXPECT_THROW(require_way_between(devices, Implementation::Nccl), Unimplemented);
  EXPECT_NO_THROW(require_way_between(plan_mirrored_devices({"cpu:0", "gpu:1"}), Implementation::Nccl));
  EXPECT_THROW(require_way_between(plan_mirrored_devices({"cpu:0", "gpu:1", "gpu:0"}), Implementation::Nccl),
               Unimplemented);
}

}  // namespace
}  // namespace lockstep
