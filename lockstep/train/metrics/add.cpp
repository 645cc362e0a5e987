#include "lockstep/train/metrics/add.h"
#include "lockstep/values/const_data.h"

namespace lockstep::train::metrics {
namespace {

constexpr std::int64_t kSmall = 4096;

template <class T>
double sum_of(const at::Tensor& values) {
  const T* const numbers = const_data<T>(values);
  double sum = 0;
  for (std::int64_t i = 0; i < values.numel(); ++i) sum += static_cast<double>(numbers[i]);
  return sum;
}

}  // namespace

bool is_small_on_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.numel() <= kSmall && tensor.is_contiguous() &&
         !tensor.is_neg();
}

void add_number(const at::Tensor& sums, std::int64_t at, double value) {
  if (sums.is_cpu())
    sums.data_ptr<double>()[at] += value;
  else
    sums.select(0, at).add_(value);
}

void add_sum(const at::Tensor& sums, std::int64_t at, const at::Tensor& values) {
  if (sums.is_cpu() && is_small_on_cpu(values)) {
    switch (values.scalar_type()) {
      case at::kFloat: return add_number(sums, at, sum_of<float>(values));
      case at::kDouble: return add_number(sums, at, sum_of<double>(values));
      case at::kLong: return add_number(sums, at, sum_of<std::int64_t>(values));
      case at::kBool: return add_number(sums, at, sum_of<bool>(values));
      default: break;
    }
  }
  sums.select(0, at).add_(values.sum(at::kDouble));
}

}  // namespace lockstep::train::metrics
