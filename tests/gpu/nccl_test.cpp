#include "lockstep/comm/nccl/nccl_engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/comm/nccl/tree_sum.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/values/const_data.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/same_bits.h"

// A single worker: several are tested by multi_worker_same_bits_by_nccl, and the schedule of their sums on CPUs.
namespace lockstep::nccl {
namespace {

constexpr at::ScalarType kTypes[] = {at::kByte, at::kChar,  at::kShort,    at::kInt,   at::kLong,
                                     at::kHalf, at::kFloat, at::kBFloat16, at::kDouble};

at::Tensor values_of(at::ScalarType type, std::int64_t elements) { return at::randn({elements}).mul(90).to(type); }

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream(0).stream(); }

class NcclEngine : public testing::Test {
 protected:
  Engine& make(int replicas, EngineOptions options = {}) {
    options.replicas = replicas;
    options.connection.id = make_id();
    options.connection.limit = Deadline::after(std::chrono::seconds(60));
    engine_ = std::make_unique<Engine>(options);
    return *engine_;
  }
  void run(const Collective& collective) {
    engine_->start(collective, stream(), [&](std::size_t bytes) {
      room_ = at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(kGpu).dtype(at::kByte));
      return room_.data_ptr();
    });
  }

  std::unique_ptr<Engine> engine_;
  at::Tensor room_;
};

/// All numbers of arrays with a specialised kernel, and some without.
TEST(TreeSum, HasTheBitsOfTheCpus) {
  for (const at::ScalarType type : kTypes) {
    for (const int count : {1, 2, 3, 4, 5, 7, 8, 13, 64, 255, 256}) {
      for (const std::int64_t elements : {1, 1001, 300001}) {
        if (elements > 1001 && count > 8) continue;
        for (const bool is_mean : {false, true}) {
          if (is_mean && !at::isFloatingType(type)) continue;
          SCOPED_TRACE(str(c10::toString(type), ", ", count, " arrays of ", elements));
          std::vector<at::Tensor> on_cpu, on_gpu;
          std::vector<const void*> inputs;
          for (int k = 0; k < count; ++k) {
            on_cpu.push_back(values_of(type, elements));
            on_gpu.push_back(on_cpu.back().to(kGpu));
            inputs.push_back(on_gpu.back().const_data_ptr());
          }
          at::Tensor& into = on_gpu.back();  // in place
          ASSERT_EQ(tree_sum(*engine_dtype(type), inputs, into.data_ptr(), static_cast<std::size_t>(elements),
                             is_mean ? count : 1, stream()),
                    cudaSuccess);
          const auto op = is_mean ? ReduceOp::Mean : ReduceOp::Sum;
          ASSERT_TRUE(same_bits(into.cpu(), ordered_reduce(op, on_cpu)));
        }
      }
    }
  }
}

TEST_F(NcclEngine, SumsOfAllTypesAndWays) {
  for (const int replicas : {1, 2, 3, 6}) {
    make(replicas);
    for (const at::ScalarType type : kTypes) {
      for (const auto way : {Implementation::Auto, Implementation::Nccl}) {
        for (const std::int64_t elements : {0, 1, 1001}) {
          std::vector<at::Tensor> on_cpu, on_gpu;
          std::vector<const void*> inputs;
          for (int k = 0; k < replicas; ++k) {
            on_cpu.push_back(values_of(type, elements));
            on_gpu.push_back(on_cpu.back().to(kGpu));
            inputs.push_back(on_gpu.back().const_data_ptr());
          }
          const at::Tensor first = at::empty_like(on_gpu[0]), second = at::empty_like(on_gpu[0]);
          void* const outputs[] = {first.data_ptr(), second.data_ptr()};
          const auto op = at::isFloatingType(type) ? ReduceOp::Mean : ReduceOp::Sum;
          for (const auto kind : {CollectiveKind::AllReduce, CollectiveKind::ReduceScatter}) {
            first.zero_(), second.zero_();
            run({.kind = kind,
                 .dtype = *engine_dtype(type),
                 .elements = static_cast<std::size_t>(elements),
                 .inputs = inputs,
                 .outputs = std::vector<void*>(outputs, outputs + (kind == CollectiveKind::AllReduce ? 2 : 1)),
                 .reduce = op,
                 .implementation = way});
            SCOPED_TRACE(str(to_string(kind), " of ", c10::toString(type), ", ", replicas, " x ", elements));
            EXPECT_TRUE(same_bits(first.cpu(), ordered_reduce(op, on_cpu)));
            if (kind == CollectiveKind::AllReduce) {
              EXPECT_TRUE(same_bits(second.cpu(), first.cpu()));
            }
          }
        }
      }
    }
  }
}

TEST_F(NcclEngine, BroadcastGatherAndBarrier) {
  Engine& engine = make(1);
  const at::Tensor values = at::randn({1001}).to(kGpu);
  const void* const input = values.const_data_ptr();
  const std::vector<std::uint64_t> counts = {1001};
  for (const auto kind : {CollectiveKind::Broadcast, CollectiveKind::AllGather}) {
    const at::Tensor result = at::empty_like(values).zero_();
    void* const output = result.data_ptr();
    run({.kind = kind, .elements = 1001, .inputs = {input}, .outputs = {output}, .counts = counts});
    EXPECT_TRUE(same_bits(result.cpu(), values.cpu())) << to_string(kind);
  }
  run({.kind = CollectiveKind::Barrier});
  engine.wait();
}

TEST_F(NcclEngine, AFailureOfTheJobEndsIt) {
  std::atomic<bool> has_failed{false};
  std::atomic<int> told{0};
  Engine& engine =
      make(1, {.connection = {.check =
                                  [&] {
                                    if (has_failed)
                                      throw Unavailable(errors::kPeerFailed, {.what = "the job has failed"});
                                  },
                              .failed = [&](const Error&) { ++told; }}});
  run({.kind = CollectiveKind::Barrier});
  engine.wait();
  const at::Tensor busy = slow_zeros({1});  // so that the next one is still in progress
  for (int i = 0; i < 200; ++i) slow_zeros({1});
  run({.kind = CollectiveKind::Barrier});
  has_failed = true;
  EXPECT_THROW(engine.wait(), Unavailable);
  EXPECT_THROW(run({.kind = CollectiveKind::Barrier}), Unavailable);
  engine_.reset();
  EXPECT_EQ(told, 1);
}

TEST_F(NcclEngine, ATimeLimitEndsIt) {
  Engine& engine = make(1, {.call_seconds = 0.05});
  for (int i = 0; i < 400; ++i) slow_zeros({1});
  run({.kind = CollectiveKind::Barrier, .name = "gradients"});
  try {
    engine.wait();
    FAIL() << "no time limit was noticed";
  } catch (const DeadlineExceeded& error) {
    EXPECT_EQ(error.number(), errors::kTimeout);
    EXPECT_NE(std::string(error.what()).find("gradients"), std::string::npos) << error.what();
  }
}

TEST(NcclConnection, EndsWhereOthersDoNotCome) {
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THROW(Connection({.workers = 2, .id = make_id(), .limit = Deadline::after(std::chrono::seconds(1))}),
               DeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

}  // namespace
}  // namespace lockstep::nccl
