#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <type_traits>
#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/train/batch_parts.h"
#include "lockstep/train/metric.h"
#include "lockstep/train/typed_function.h"

namespace lockstep::train {

namespace detail {

/// Output and target of a metric. Without a target that of the batch is meant.
struct Selected {
  Selected(at::Tensor o) : output(std::move(o)) {}  // NOLINT(google-explicit-constructor)
  Selected(at::Tensor o, at::Tensor t) : output(std::move(o)), target(std::move(t)) {}
  template <class Pair>
    requires requires(const Pair& p) {
      at::Tensor(p.first);
      at::Tensor(p.second);
    }
  Selected(const Pair& p) : output(p.first), target(p.second) {}  // NOLINT(google-explicit-constructor)

  at::Tensor output, target;
};
using Selector = TypedFunction<Selected>;

class LOCKSTEP_EXPORT SelectedMetric final : public Metric {
 public:
  SelectedMetric(MetricPtr metric, Selector select);
  const Metric& metric() const { return *metric_; }
  Selected selected_of(const Prediction& prediction) const;

  void add(const at::Tensor& sums, const at::Tensor& output, const at::Tensor& target) const override;
  double value(std::span<const double> sums) const override { return metric_->value(sums); }

 private:
  MetricPtr metric_;
  Selector select_;
};

/// The metric that does the measuring: `metric`, or the innermost one of a selection or a selection of a selection.
const Metric& measuring(const Metric& metric);
/// The tensors that `metric` measures. Throws InvalidArgument if it is not a selection, and output or target are not tensors.
Selected measured_of(const Metric& metric, const Prediction& prediction);
Selected measured_of(const Metric& metric, const at::Tensor& output, const at::Tensor& target);

}  // namespace detail

namespace metrics {

/// A metric of a part of the output, for networks that return more than one tensor, or batches with other fields. `f` is called
/// with the output, or with the output and the target or the batch, as a loss is. It returns the tensor to measure, or a pair
/// of that and its target.
///
///     select(mse(), [](const VaeOutput& output, const Images& mine) { return std::pair{output.image, mine.image}; })
///     select(accuracy(), [](const Outputs& output) { return output.classes; })
///
/// In a selection of a selection, `select(select(metric, f), g)`, `f` is called with the tensors that `g` returned.
template <class F>
MetricPtr select(MetricPtr metric, F f) {
  using Parameters = typename decltype(detail::parameters_of<F>())::type;
  constexpr bool kFits = detail::length_v<Parameters> >= 1 && detail::length_v<Parameters> <= 2 &&
                         detail::is_callable_with_v<F, Parameters>;
  static_assert(kFits,
                "select(metric, f) calls f(output), f(output, target) or f(output, batch): write out the types of f's "
                "parameters");
  if constexpr (kFits) {
    constexpr bool kSelects =
        std::is_constructible_v<detail::Selected, typename detail::ResultWith<F, Parameters>::type>;
    static_assert(kSelects,
                  "select(metric, f): f must return a tensor, or a pair of the output and the target to measure");
    if constexpr (kSelects)
      return std::make_shared<detail::SelectedMetric>(std::move(metric), detail::Selector(std::move(f), Parameters()));
  }
  return metric;
}

}  // namespace metrics
}  // namespace lockstep::train
