#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/export.h"

namespace lockstep::train {

/// A number about predictions that follows from sums over examples. Sums over batches, replicas and workers can be added up, so
/// the value is exact however unevenly the examples are spread.
///
/// Derive from it for a metric of your own; for a mean over examples `metrics::custom` takes a function.
///
///     struct Largest : ls::train::Metric {
///       Largest() : Metric("above_one", /*sums=*/2) {}
///       void add(const at::Tensor& sums, const at::Tensor& output, const at::Tensor&) const override {
///         sums[0] += output.gt(1).sum();
///         sums[1] += output.numel();
///       }
///       double value(std::span<const double> sums) const override { return sums[0] / sums[1]; }
///     };
class LOCKSTEP_EXPORT Metric {
 public:
  Metric(std::string name, std::int64_t sums) : name_(std::move(name)), sums_(sums) {}
  virtual ~Metric() = default;

  const std::string& name() const { return name_; }
  std::int64_t sums() const { return sums_; }

  /// Adds the sums of one batch of one replica, which may have no rows, to `sums`: float64, on the device of `output`. Called
  /// inside run without gradients, on several threads at once. Must not wait for the device.
  virtual void add(const at::Tensor& sums, const at::Tensor& output, const at::Tensor& target) const = 0;
  /// The value, from the sums of all batches of all replicas. NaN if there were no examples.
  virtual double value(std::span<const double> sums) const = 0;

 private:
  std::string name_;
  std::int64_t sums_;
};

using MetricPtr = std::shared_ptr<const Metric>;

}  // namespace lockstep::train
