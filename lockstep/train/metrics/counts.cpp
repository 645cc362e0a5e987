// Metrics that count examples by class or by score.

#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/metrics/scores.h"
#include "lockstep/train/metrics/shapes.h"
#include "lockstep/train/require_option.h"
#include "lockstep/values/const_data.h"

namespace lockstep::train::metrics {
namespace {

using detail::require_option;

/// Adds one at each of these places. Whole numbers, so that their order does not matter.
void count(const at::Tensor& counts, const at::Tensor& places) {
  const at::Tensor flat = places.reshape({-1});
  counts.index_add_(0, flat.to(at::kLong), at::ones({}, counts.options()).expand({flat.numel()}));
}

/// Hits, predicted and actual of each class, one after the other.
class ByClass final : public Metric {
 public:
  enum class Kind { Precision, Recall, FBeta };

  ByClass(std::string name, Kind kind, const ClassOptions& options)
      : Metric(std::move(name), 3 * std::max<std::int64_t>(options.classes, 1)), kind_(kind), options_(options) {}

  void add(const at::Tensor& sums, const at::Tensor& output, const at::Tensor& target) const override {
    if (options_.classes == 0) return add_binary(sums, output, target);
    require_class_numbers(name(), output, target);
    require_classes(name(), output, options_.classes);
    const at::Tensor predicted = output.argmax(1), n = sums.view({3, options_.classes});
    const at::Tensor hits = predicted.eq(target).to(at::kDouble).reshape({-1});
    n.select(0, 0).index_add_(0, target.to(at::kLong).reshape({-1}), hits);
    count(n.select(0, 1), predicted);
    count(n.select(0, 2), target);
  }

  double value(std::span<const double> sums) const override {
    const std::size_t classes = sums.size() / 3;
    ClassCounts all;
    double total = 0, weights = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      const ClassCounts one{sums[c], sums[classes + c], sums[2 * classes + c]};
      all = {all.hits + one.hits, all.predicted + one.predicted, all.actual + one.actual};
      const bool occurs = one.predicted + one.actual > 0;
      const double weight = options_.average == Average::Weighted ? one.actual : occurs ? 1.0 : 0.0;
      total += weight * value_of(one);
      weights += weight;
    }
    if (classes == 1 || options_.average == Average::Micro) return value_of(all);
    return weights > 0 ? total / weights : 0.0;
  }

 private:
  double value_of(const ClassCounts& counts) const {
    if (kind_ == Kind::Precision) return precision_of(counts);
    return kind_ == Kind::Recall ? recall_of(counts) : f_beta_of(counts, options_.beta);
  }
  void add_binary(const at::Tensor& sums, const at::Tensor& output, const at::Tensor& target) const {
    require_same_shape(name(), output, target);
    const at::Tensor predicted = (options_.from_logits ? output.sigmoid() : output).gt(options_.threshold);
    const at::Tensor actual = target.gt(0.5);
    sums.select(0, 0).add_(predicted.logical_and(actual).sum());
    sums.select(0, 1).add_(predicted.sum());
    sums.select(0, 2).add_(actual.sum());
  }

  Kind kind_;
  ClassOptions options_;
};

MetricPtr by_class(const char* name, ByClass::Kind kind, const ClassOptions& options) {
  const std::string where = str("metrics::", name);
  require_option(options.classes == 0 || options.classes >= 2, where,
                 str("classes must be 0 for binary targets or >= 2, got ", options.classes),
                 "leave it out for one score per example, else give the number of scores");
  require_option(options.beta > 0, where, str("beta must be > 0, got ", options.beta), "1 gives the F1 score");
  return std::make_shared<ByClass>(options.name.empty() ? name : options.name, kind, options);
}

class Confusion final : public Metric {
 public:
  explicit Confusion(const ConfusionOptions& options)
      : Metric(options.name, options.classes * options.classes), classes_(options.classes) {}

  void add(const at::Tensor& sums, const at::Tensor& output, const at::Tensor& target) const override {
    require_class_numbers(name(), output, target);
    require_classes(name(), output, classes_);
    count(sums, target.to(at::kLong).mul(classes_).add(output.argmax(1)));
  }
  double value(std::span<const double> sums) const override {
    double right = 0, all = 0;
    for (std::size_t k = 0; k < sums.size(); ++k) {
      all += sums[k];
      if (k % static_cast<std::size_t>(classes_ + 1) == 0) right += sums[k];
    }
    return right / all;
  }

 private:
  std::int64_t classes_;
};

/// Positives by bin, negatives by bin, scores that are NaN.
class Auc final : public Metric {
 public:
  Auc(std::string name, const AucOptions& options)
      : Metric(std::move(name), 2 * (options.thresholds - 1) + 1), options_(options), bins_(options.thresholds - 1) {}

  void add(const at::Tensor& sums, const at::Tensor& output, const at::Tensor& target) const override {
    require_same_shape(name(), output, target);
    const at::Tensor scores = (options_.from_logits ? output.sigmoid() : output).to(at::kDouble);
    const at::Tensor bins = scores.mul(bins_).ceil().sub(1).nan_to_num(0).clamp(0, static_cast<double>(bins_ - 1));
    count(sums, bins.add(target.gt(0.5).logical_not().to(at::kDouble), bins_));
    sums.select(0, 2 * bins_).add_(scores.isnan().sum());
  }
  double value(std::span<const double> sums) const override {
    const auto bins = static_cast<std::size_t>(bins_);
    if (sums[2 * bins] > 0) return std::numeric_limits<double>::quiet_NaN();
    const auto positives = sums.first(bins), negatives = sums.subspan(bins, bins);
    return options_.curve == Curve::Roc ? roc_area(positives, negatives) : average_precision(positives, negatives);
  }

 private:
  AucOptions options_;
  std::int64_t bins_;
};

/// A score and a class of each example: 1 for positive ones, else 0.
class ExactAuc final : public GatheredMetric {
 public:
  ExactAuc(std::string name, Curve curve) : GatheredMetric(std::move(name), 2), curve_(curve) {}

  at::Tensor keep(const at::Tensor& output, const at::Tensor& target) const override {
    require_same_shape(name(), output, target);
    // Logits are in the order of their sigmoids, and as far apart as they were.
    const auto type = output.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::stack({output.reshape({-1}).to(type), target.reshape({-1}).gt(0.5).to(type)}, 1);
  }
  double value_of(const at::Tensor& examples) const override {
    const auto count = static_cast<std::size_t>(examples.numel());
    const std::span<const double> pairs(const_data<double>(examples), count);
    if (std::ranges::any_of(pairs, [](double number) { return std::isnan(number); }))
      return std::numeric_limits<double>::quiet_NaN();
    const auto [positives, negatives] = counts_by_score(pairs);
    return curve_ == Curve::Roc ? roc_area(positives, negatives) : average_precision(positives, negatives);
  }

 private:
  Curve curve_;
};

}  // namespace

MetricPtr precision(const ClassOptions& options) { return by_class("precision", ByClass::Kind::Precision, options); }
MetricPtr recall(const ClassOptions& options) { return by_class("recall", ByClass::Kind::Recall, options); }
MetricPtr f_beta(const ClassOptions& options) { return by_class("f_beta", ByClass::Kind::FBeta, options); }

MetricPtr confusion(const ConfusionOptions& options) {
  require_option(options.classes >= 2, "metrics::confusion", str("classes must be >= 2, got ", options.classes),
                 "give the number of scores that the model returns");
  return std::make_shared<Confusion>(options);
}

std::vector<std::vector<std::int64_t>> confusion_matrix(std::span<const double> sums) {
  const auto classes = static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(sums.size()))));
  std::vector<std::vector<std::int64_t>> matrix(classes);
  for (std::size_t k = 0; k < classes * classes; ++k) matrix[k / classes].push_back(std::llround(sums[k]));
  return matrix;
}

MetricPtr auc(const AucOptions& options) {
  require_option(options.thresholds >= 2, "metrics::auc", str("thresholds must be >= 2, got ", options.thresholds),
                 "200 is usual");
  const std::string usual = options.curve == Curve::Roc ? "auc" : "pr_auc";
  const std::string& name = options.name.empty() ? usual : options.name;
  if (options.exact) return std::make_shared<ExactAuc>(name, options.curve);
  return std::make_shared<Auc>(name, options);
}

}  // namespace lockstep::train::metrics
