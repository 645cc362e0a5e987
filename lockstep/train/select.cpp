#include "lockstep/train/select.h"

#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::train::detail {
namespace {

const MetricPtr& require_metric(const MetricPtr& metric) {
  if (metric == nullptr) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = "a metric must not be null",
                           .where = "metrics::select",
                           .help = "use ls::train::metrics, or std::make_shared of your own class"});
  }
  return metric;
}

/// What `select` returns for the first of these that it takes.
std::optional<Selected> select_of(const Selector& select, const AnyRef& output, const AnyRef* target,
                                  const AnyRef* batch) {
  const AnyRef alone[] = {output};
  if (select.takes(alone)) return select(alone);
  for (const AnyRef* second : {target, batch}) {
    if (second == nullptr) continue;
    const AnyRef both[] = {output, *second};
    if (select.takes(both)) return select(both);
  }
  return std::nullopt;
}

[[noreturn]] void throw_types(const Metric& metric, const Selector& select, const std::string& seen) {
  throw InvalidArgument(errors::kStructure,
                        {.what = lockstep::str("the function given to select takes ", names_of_types(select.types()),
                                               ", and must take the output, or the output and the target or the batch"),
                         .where = lockstep::str("metric \"", metric.name(), "\""),
                         .seen = seen,
                         .help = "write out these types in its parameters"});
}

std::string types_of(const Prediction& prediction) {
  return lockstep::str("output: ", lockstep::type_name(prediction.output.type()),
                       ", batch: ", lockstep::type_name(prediction.batch.whole.type()), " with the fields ",
                       names_of_types(prediction.batch.fields));
}

const at::Tensor* tensor_of(const AnyRef* value) {
  return value != nullptr && value->is<at::Tensor>() ? &value->as<at::Tensor>() : nullptr;
}

}  // namespace

SelectedMetric::SelectedMetric(MetricPtr metric, Selector select)
    : Metric(require_metric(metric)->name(), metric->sums()), metric_(std::move(metric)), select_(std::move(select)) {}

Selected SelectedMetric::selected_of(const at::Tensor& output, const at::Tensor& target) const {
  const AnyRef second(target);
  const auto selected = select_of(select_, AnyRef(output), &second, nullptr);
  if (!selected) throw_types(*this, select_, "Meters::add with two tensors");
  return {selected->output, selected->target.defined() ? selected->target : target};
}

Selected SelectedMetric::selected_of(const Prediction& prediction) const {
  const auto selected = select_of(select_, prediction.output, prediction.target, &prediction.batch.whole);
  if (!selected) throw_types(*this, select_, types_of(prediction));
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
  const Selected selected = selected_of(output, target);
  metric_->add(sums, selected.output, selected.target);
}

const Metric& measuring(const Metric& metric) {
  const auto* const selection = dynamic_cast<const SelectedMetric*>(&metric);
  return selection != nullptr ? measuring(selection->metric()) : metric;
}

Selected measured_of(const Metric& metric, const at::Tensor& output, const at::Tensor& target) {
  const auto* const selection = dynamic_cast<const SelectedMetric*>(&metric);
  if (selection == nullptr) return {output, target};
  const Selected selected = selection->selected_of(output, target);
  return measured_of(selection->metric(), selected.output, selected.target);
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
