// Metrics that are a mean, or a function of one.

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/metrics/add.h"
#include "lockstep/train/metrics/shapes.h"
#include "lockstep/train/require_option.h"
#include "lockstep/values/const_data.h"

namespace lockstep::train::metrics {
namespace {

/// Sums: total, count.
class MeanMetric final : public Metric {
 public:
  using Finish = double (*)(double mean);

  MeanMetric(std::string name, PerExample f, Finish finish)
      : Metric(std::move(name), 2), f_(std::move(f)), finish_(finish) {}

  void add(const at::Tensor& sums, const at::Tensor& output, const at::Tensor& target) const override {
    const at::Tensor values = f_(output, target);
    if (!values.defined()) {
      throw InvalidArgument(errors::kShape, {.what = str("metric \"", name(), "\" returned an undefined tensor"),
                                             .help = "return one value for each row"});
    }
    add_sum(sums, 0, values);
    add_number(sums, 1, static_cast<double>(values.numel()));
  }
  double value(std::span<const double> sums) const override { return finish_(sums[0] / sums[1]); }

 private:
  PerExample f_;
  Finish finish_;
};

double as_it_is(double mean) { return mean; }
double root(double mean) { return std::sqrt(mean); }

MetricPtr mean_of(std::string name, PerExample f, MeanMetric::Finish finish = as_it_is) {
  return std::make_shared<MeanMetric>(std::move(name), std::move(f), finish);
}

/// `f(output - target)` of equal shapes, in float64: squares of float32 differences would round.
template <class F>
PerExample difference(const std::string& name, F f) {
  return [name, f](const at::Tensor& output, const at::Tensor& target) {
    require_same_shape(name, output, target);
    return f(output.to(at::kDouble).sub(target));
  };
}

at::Tensor squared(const at::Tensor& difference) { return difference.square(); }

/// The first of the largest; NaN counts as larger than all numbers, as in LibTorch's argmax.
std::int64_t largest_of(const float* scores, std::int64_t count) {
  std::int64_t best = 0;
  for (std::int64_t c = 1; c < count && !std::isnan(scores[best]); ++c) {
    if (scores[c] > scores[best] || std::isnan(scores[c])) best = c;
  }
  return best;
}

/// What `is_right` returns, by a loop over few scores. Undefined if a class number has no score.
at::Tensor is_right_on_cpu(std::int64_t top_k, const at::Tensor& output, const at::Tensor& classes) {
  const std::int64_t count = output.size(1);
  at::Tensor right = at::empty({output.size(0)}, output.options().dtype(at::kBool));
  const float* scores = const_data<float>(output);
  const std::int64_t* const targets = const_data<std::int64_t>(classes);
  for (std::int64_t row = 0; row < output.size(0); ++row, scores += count) {
    bool& is_right = right.data_ptr<bool>()[row];
    if (top_k == 1) {
      is_right = largest_of(scores, count) == targets[row];
      continue;
    }
    if (targets[row] < 0 || targets[row] >= count) return {};
    const float score = scores[targets[row]];
    std::int64_t higher = 0;
    for (std::int64_t c = 0; c < count; ++c) higher += scores[c] > score ? 1 : 0;
    is_right = higher < top_k && !std::isnan(score);
  }
  return right;
}

at::Tensor is_right(const std::string& name, std::int64_t top_k, const at::Tensor& output, const at::Tensor& target) {
  const bool are_scores = target.dim() == output.dim() && output.dim() >= 2;
  if (are_scores) require_same_shape(name, output, target);
  const at::Tensor classes = are_scores ? target.argmax(1) : target;
  require_class_numbers(name, output, classes);
  if (output.dim() == 2 && output.size(1) > 0 && output.scalar_type() == at::kFloat &&
      classes.scalar_type() == at::kLong && is_small_on_cpu(output) && is_small_on_cpu(classes)) {
    at::Tensor right = is_right_on_cpu(top_k, output, classes);
    if (right.defined()) return right;
  }
  if (top_k == 1) return output.argmax(1).eq(classes);
  const at::Tensor score = output.gather(1, classes.to(at::kLong).unsqueeze(1));
  const at::Tensor higher = output.gt(score).sum(1);
  return higher.lt(top_k).logical_and(score.eq(score).squeeze(1));  // NaN is never right
}

/// Sums: count, targets, squares of targets, squares of differences.
class R2 final : public Metric {
 public:
  explicit R2(std::string name) : Metric(std::move(name), 4) {}

  void add(const at::Tensor& sums, const at::Tensor& output, const at::Tensor& target) const override {
    require_same_shape(name(), output, target);
    const at::Tensor wanted = target.to(at::kDouble);
    sums.select(0, 0).add_(target.numel());
    sums.select(0, 1).add_(wanted.sum());
    sums.select(0, 2).add_(wanted.square().sum());
    sums.select(0, 3).add_(output.to(at::kDouble).sub(wanted).square().sum());
  }
  double value(std::span<const double> sums) const override {
    return 1 - sums[3] / (sums[2] - sums[1] * sums[1] / sums[0]);
  }
};

/// Sums: cross entropy, count.
class Perplexity final : public Metric {
 public:
  explicit Perplexity(const PerplexityOptions& options) : Metric(options.name, 2), ignored_(options.ignore_index) {}

  void add(const at::Tensor& sums, const at::Tensor& output, const at::Tensor& target) const override {
    require_class_numbers(name(), output, target);
    if (target.numel() == 0) return;
    const at::Tensor scores = output.element_size() < 4 ? output.to(at::kFloat) : output;
    const at::Tensor losses = at::cross_entropy_loss(scores, target.to(at::kLong), {}, at::Reduction::None, ignored_);
    add_sum(sums, 0, losses);
    add_sum(sums, 1, target.ne(ignored_));
  }
  double value(std::span<const double> sums) const override { return std::exp(sums[0] / sums[1]); }

 private:
  std::int64_t ignored_;
};

}  // namespace

MetricPtr accuracy(const AccuracyOptions& options) {
  detail::require_option(options.top_k >= 1, "metrics::accuracy", str("top_k must be >= 1, got ", options.top_k),
                         "leave it out to compare the class with the highest score");
  return mean_of(options.name,
                 [name = options.name, k = options.top_k](const at::Tensor& output, const at::Tensor& target) {
                   return is_right(name, k, output, target);
                 });
}

MetricPtr binary_accuracy(const BinaryOptions& options) {
  const std::string name = options.name.empty() ? "binary_accuracy" : options.name;
  return mean_of(name, [name, options](const at::Tensor& output, const at::Tensor& target) {
    require_same_shape(name, output, target);
    const at::Tensor scores = options.from_logits ? output.sigmoid() : output;
    return scores.gt(options.threshold).eq(target.gt(0.5)).logical_and(scores.eq(scores));
  });
}

MetricPtr mse(std::string name) { return mean_of(name, difference(name, squared)); }
MetricPtr rmse(std::string name) { return mean_of(name, difference(name, squared), root); }
MetricPtr mae(std::string name) {
  return mean_of(name, difference(name, [](const at::Tensor& difference) { return difference.abs(); }));
}
MetricPtr r2(std::string name) { return std::make_shared<R2>(std::move(name)); }

MetricPtr cosine_similarity(std::string name) {
  return mean_of(name, [name](const at::Tensor& output, const at::Tensor& target) {
    require_same_shape(name, output, target);
    if (output.dim() < 2) require_class_numbers(name, output, target);  // says that there is no dimension 1
    const at::Tensor a = output.to(at::kDouble), b = target.to(at::kDouble);
    const at::Tensor lengths = a.square().sum(1).mul(b.square().sum(1)).sqrt();
    return a.mul(b).sum(1).div(lengths.clamp_min(1e-12));
  });
}

MetricPtr perplexity(const PerplexityOptions& options) { return std::make_shared<Perplexity>(options); }

MetricPtr custom(std::string name, PerExample f) { return mean_of(std::move(name), std::move(f)); }

}  // namespace lockstep::train::metrics
