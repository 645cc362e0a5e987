#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/nn/block_norm.h"
#include "lockstep/nn/owner_plan.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/values/const_data.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/same_bits.h"

namespace lockstep {
namespace {

struct SumCase {
  int replicas;
  std::int64_t divisor;
  int missing;        ///< this replica has no gradient; -1: all have one
  std::int64_t skew;  ///< elements between a memory's start and the first number: 1 is not aligned
};

class GpuSums : public testing::TestWithParam<SumCase> {};
INSTANTIATE_TEST_SUITE_P(, GpuSums,
                         testing::Values(SumCase{1, 1, -1, 0}, SumCase{2, 1, -1, 0}, SumCase{2, 2, 1, 0},
                                         SumCase{3, 3, -1, 1}, SumCase{4, 4, -1, 0}, SumCase{4, 1, 0, 3},
                                         SumCase{5, 5, -1, 0}, SumCase{6, 1, 5, 1}, SumCase{7, 7, 2, 0},
                                         SumCase{8, 1, -1, 0}, SumCase{8, 8, 3, 2}, SumCase{13, 13, -1, 0},
                                         SumCase{33, 1, -1, 0}, SumCase{64, 64, 63, 1}));

/// Many segments of odd sizes in one call, so that tables fill up: the same bits as sums on the CPU.
TEST_P(GpuSums, HaveTheBitsOfTheCpus) {
  const auto [replicas, divisor, missing, skew] = GetParam();
  std::vector<detail::DeviceSum> sums;
  std::vector<at::Tensor> keep;
  std::vector<at::Tensor> expected;
  for (int i = 0; i < 150; ++i) {
    constexpr std::int64_t kSizes[] = {1, 3, 4, 7, 255, 1024, 4095, 4096, 4097, 20001, 0};
    const std::int64_t size = kSizes[i % 11];
    detail::DeviceSum sum;
    std::vector<at::Tensor> on_cpu;
    for (int k = 0; k < replicas; ++k) {
      const at::Tensor values = at::randn({size + skew}).mul(std::pow(10.0, k % 5));
      on_cpu.push_back(values.slice(0, skew));
      keep.push_back(values.to(kGpu));
      sum.gradients.push_back(const_data<float>(keep.back()) + skew);
      if (k == missing) {
        on_cpu.back().zero_();
        sum.gradients.back() = nullptr;
      }
    }
    sum.target = at::full({size + skew}, -7.0, kGpu).slice(0, skew);
    expected.push_back(ordered_reduce(divisor == 1 ? ReduceOp::Sum : ReduceOp::Mean, on_cpu));
    sums.push_back(std::move(sum));
  }
  detail::sum_on_device(sums, divisor);
  for (std::size_t i = 0; i < sums.size(); ++i)
    EXPECT_TRUE(same_bits(sums[i].target.cpu(), expected[i])) << "segment #" << i << " of " << expected[i].numel();
}

TEST(GpuNorm, SumsOfSquaresDoNotDependOnTheCut) {
  const at::Tensor values = at::randn({5 * kShardBlock + 17}, kGpu);
  std::vector<double> whole(6);
  sum_squares_in_blocks(values, whole.data(), whole.size());
  for (std::int64_t first = 0; first < 6; ++first) {
    std::vector<double> part(static_cast<std::size_t>(6 - first));
    sum_squares_in_blocks(values.slice(0, first * kShardBlock), part.data(), part.size());
    for (std::size_t b = 0; b < part.size(); ++b) EXPECT_EQ(part[b], whole[static_cast<std::size_t>(first) + b]);
  }
  std::vector<double> cpu(6);
  sum_squares_in_blocks(values.cpu(), cpu.data(), cpu.size());
  for (std::size_t b = 0; b < cpu.size(); ++b) EXPECT_NEAR(whole[b] / cpu[b], 1.0, 1e-12);
  for (const at::ScalarType type : {at::kDouble, at::kHalf, at::kBFloat16}) {
    std::vector<double> other(6), other_cpu(6);
    sum_squares_in_blocks(values.to(type), other.data(), other.size());
    sum_squares_in_blocks(values.to(type).cpu(), other_cpu.data(), other_cpu.size());
    for (std::size_t b = 0; b < cpu.size(); ++b) EXPECT_NEAR(other[b] / other_cpu[b], 1.0, 1e-12) << type;
  }
}

}  // namespace
}  // namespace lockstep
