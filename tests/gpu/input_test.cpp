#include <ATen/ops/arange.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <optional>

#include "lockstep/data/dataset.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/replicas.h"

namespace lockstep {
namespace {

struct InputCase {
  int replicas;
  int buffer;
  bool on_other_stream;  ///< the caller's is not LibTorch's default stream
};

class GpuInput : public testing::TestWithParam<InputCase> {};
INSTANTIATE_TEST_SUITE_P(, GpuInput,
                         testing::Values(InputCase{1, 0, false}, InputCase{1, 1, true}, InputCase{2, 1, false},
                                         InputCase{3, 4, true}, InputCase{4, 2, false}, InputCase{4, 2, true}));

/// Batches are on the GPU when a replica gets them, and their memory is not overwritten by the next ones during its
/// computation.
TEST_P(GpuInput, BatchesArriveWholeAndStayWhole) {
  const auto [replicas, buffer, on_other_stream] = GetParam();
  std::optional<c10::cuda::CUDAStreamGuard> other;
  if (on_other_stream) other.emplace(c10::cuda::getStreamFromPool());
  MirroredStrategy strategy(on_gpu(replicas));
  constexpr std::int64_t kRows = 16, kWidth = 4099, kSteps = 40;
  const at::Tensor rows =
      at::arange(kRows * kSteps, at::kFloat).unsqueeze(1).expand({kRows * kSteps, kWidth}).contiguous();
  auto batches = strategy.distribute(data::from_tensor_slices(rows).batch(kRows), {.per_replica_buffer_size = buffer});
  std::int64_t step = 0;
  std::vector<at::Tensor> sums;
  for (const auto& batch : batches) {
    const auto parts = strategy.run(
        [&](const at::Tensor& mine) {
          EXPECT_EQ(mine.device(), kGpu);
          return slow_zeros({1}).add(mine.to(at::kDouble).sum());
        },
        batch);
    sums.push_back(strategy.reduce(ReduceOp::Sum, parts));  // nothing in this loop waits for the GPU
    ++step;
  }
  ASSERT_EQ(step, kSteps);
  for (std::int64_t i = 0; i < kSteps; ++i) {
    const double first = static_cast<double>(i * kRows);
    EXPECT_EQ(sums[static_cast<std::size_t>(i)].item<double>(), kWidth * (kRows * first + kRows * (kRows - 1) / 2.0))
        << "step " << i;
  }
}

TEST_P(GpuInput, PartsOfABatchOnTheHostArrive) {
  const auto [replicas, buffer, on_other_stream] = GetParam();
  std::optional<c10::cuda::CUDAStreamGuard> other;
  if (on_other_stream) other.emplace(c10::cuda::getStreamFromPool());
  MirroredStrategy strategy(on_gpu(replicas));
  for (int step = 0; step < 20; ++step) {
    const auto parts = strategy.split(at::arange(1000, at::kDouble).add(step));
    const auto sums = strategy.run([](const at::Tensor& mine) { return slow_zeros({1}).add(mine.sum()); }, parts);
    EXPECT_EQ(parts[0].device(), kGpu);
    EXPECT_EQ(strategy.reduce(ReduceOp::Sum, sums).item<double>(), 499500.0 + 1000 * step);
  }
}

/// Rows that a function of the pipeline computes on the GPU, on a thread unknown to the caller's stream.
TEST_P(GpuInput, RowsThatAPipelineMakesOnTheGpuAreAwaited) {
  const auto [replicas, buffer, on_other_stream] = GetParam();
  std::optional<c10::cuda::CUDAStreamGuard> other;
  if (on_other_stream) other.emplace(c10::cuda::getStreamFromPool());
  MirroredStrategy strategy(on_gpu(replicas));
  const auto late = [](const at::Tensor& rows) { return slow_zeros({1}).add(rows.to(kGpu, at::kDouble)).add(0); };
  auto batches = strategy.distribute(data::from_tensor_slices(at::arange(64)).batch(8).map(late),
                                     {.per_replica_buffer_size = buffer});
  double sum = 0;
  for (const auto& batch : batches) {
    const auto parts = strategy.run([](const at::Tensor& mine) { return mine.sum(); }, batch);
    sum += strategy.reduce(ReduceOp::Sum, parts).item<double>();
  }
  EXPECT_EQ(sum, 63 * 32);
}

TEST(GpuInputOptions, LeaveBatchesOnTheHostWhereThatIsAskedFor) {
  MirroredStrategy strategy(on_gpu(2));
  auto batches = strategy.distribute(data::from_tensor_slices(at::arange(8)).batch(4), {.fetch_to_device = false});
  for (const auto& batch : batches) {
    for (const at::Tensor& mine : batch) EXPECT_TRUE(mine.is_cpu());
  }
}

}  // namespace
}  // namespace lockstep
