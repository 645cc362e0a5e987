#include "lockstep/nn/block_norm.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>

#include "lockstep/nn/owner_plan.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/strategy/intra_op.h"
#include "lockstep/values/const_data.h"

namespace lockstep {
namespace {

template <class T>
double sum_of_squares(const T* values, std::int64_t count) {
  // Eight running sums, each for fixed places in a block: fixed order, and the compiler can keep them in registers.
  double sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      const auto x = static_cast<double>(values[i + lane]);
      sums[lane] += x * x;
    }
  }
  for (; i < count; ++i) {
    const auto x = static_cast<double>(values[i]);
    sums[i % 8] += x * x;
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

double tree_sum(const double* values, std::size_t count) {
  if (count == 0) return 0.0;
  if (count == 1) return values[0];
  const std::size_t half = std::bit_floor(count - 1);
  return tree_sum(values, half) + tree_sum(values + half, count - half);
}

}  // namespace

void sum_squares_in_blocks(const at::Tensor& values, double* sums, std::size_t blocks) {
  if (!values.is_cpu()) return detail::sum_squares_on_device(values, sums, blocks);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, values.scalar_type(), "sum_squares_in_blocks", [&] {
    const auto* data = const_data<scalar_t>(values);
    const std::int64_t elements = values.numel();
    const auto count = static_cast<std::int64_t>(blocks);
    for_ranges(at::empty({count}, at::kByte), /*grain=*/8, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t b = first; b < last; ++b) {
        const std::int64_t begin = b * kShardBlock;
        const std::int64_t end = b + 1 == count ? elements : begin + kShardBlock;
        sums[b] = sum_of_squares(data + begin, end - begin);
      }
    });
  });
}

double tree_sum(const std::vector<double>& values) { return tree_sum(values.data(), values.size()); }

}  // namespace lockstep
