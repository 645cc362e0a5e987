#include "lockstep/train/select.h"

#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/train/require_option.h"

namespace lockstep::train::detail {
namespace {

const MetricPtr& require_metric(const MetricPtr& metric) {
  require_option(metric != nullptr, "metrics::select", "a metric must not be null",
                 "use ls::train::metrics, or std::make_shared of your own class");
  return metric;
}

const at::Tensor* tensor_of(const AnyRef* value) {
  return value != nullptr && value->is<at::Tensor>() ? &value->as<at::Tensor>() : nullptr;
}

}  // namespace

SelectedMetric::SelectedMetric(MetricPtr metric, Selector select)
    : Metric(require_metric(metric)->name(), metric->sums()), metric_(std::move(metric)), select_(std::move(select)) {}

Selected SelectedMetric::selected_of(const Prediction& prediction) const {
  const AnyRef &output = prediction.output, &batch = prediction.batch.whole;
  const auto selected = select_.call_with_first(
      {{output}, {output, prediction.target != nullptr ? *prediction.target : batch}, {output, batch}});
  if (!selected) {
    throw InvalidArgument(
        errors::kStructure,
        {.what = lockstep::str("the function given to select takes ", names_of_types(select_.types()),
                               ", and must take the output, or the output and the target or the batch"),
         .where = lockstep::str("metric \"", name(), "\""),
         .seen = types_of(prediction),
         .help = "write out these types in its parameters"});
  }
  const at::Tensor* const target = selected->target.defined() ? &selected->target : tensor_of(prediction.target);
  if (target == nullptr) {
    throw InvalidArgument(errors::kStructure,
                          {.what = "the function given to select returned an output, and the target is not a tensor",
                           .where = lockstep::str("metric \"", name(), "\""),
                           .seen = types_of(prediction),
                           .help = "return std::pair{output, target}"});
  }
  return {selected->output, *target};
}

void SelectedMetric::add(const at::Tensor& sums, const at::Tensor& output, const at::Tensor& target) const {
  const Selected selected = measured_of(*this, output, target);
  measuring(*this).add(sums, selected.output, selected.target);
}

const Metric& measuring(const Metric& metric) {
  const auto* const selection = dynamic_cast<const SelectedMetric*>(&metric);
  return selection != nullptr ? measuring(selection->metric()) : metric;
}

Selected measured_of(const Metric& metric, const at::Tensor& output, const at::Tensor& target) {
  const AnyRef of_target(target);
  return measured_of(metric, Prediction{AnyRef(output), &of_target, BatchRefs{of_target}});
}

Selected measured_of(const Metric& metric, const Prediction& prediction) {
  if (const auto* const selection = dynamic_cast<const SelectedMetric*>(&metric)) {
    const Selected selected = selection->selected_of(prediction);
    return measured_of(selection->metric(), selected.output, selected.target);
  }
  const at::Tensor* const output = tensor_of(&prediction.output);
  const at::Tensor* const target = tensor_of(prediction.target);
  if (output != nullptr && target != nullptr) return {*output, *target};
  throw InvalidArgument(
      errors::kStructure,
      {.what = lockstep::str("metric \"", metric.name(), "\" needs an output and a target that are one tensor each"),
       .where = "the metrics of a train::Model",
       .seen = types_of(prediction),
       .help =
           "choose them: ls::train::metrics::select(metric, [](const Output& output, const Target& target) { return "
           "std::pair{...}; })"});
}

}  // namespace lockstep::train::detail
