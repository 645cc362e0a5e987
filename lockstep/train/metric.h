#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
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

  /// The name of its value, and how many sums it keeps.
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

/// A number that sums cannot hold, because it depends on all examples together: on their order by score, for instance. Some numbers
/// of each example are kept until it is read, so it is exact however the examples are spread.
///
/// Takes 4 or 8 bytes for each number on the replica's device until the epoch ends; then each worker has those of all workers in
/// float64 on its CPU for a moment. It has no value while the epoch runs, and a step that adds to it is not recorded on a GPU.
class LOCKSTEP_EXPORT GatheredMetric : public Metric {
 public:
  GatheredMetric(std::string name, std::int64_t columns) : Metric(std::move(name), 0), columns_(columns) {}

  std::int64_t columns() const { return columns_; }  ///< numbers of each example

  /// What to keep of one batch of one replica, which may have no rows: floating point, [examples, columns], in memory of its own.
  /// Called as `add` is.
  virtual at::Tensor keep(const at::Tensor& output, const at::Tensor& target) const = 0;
  /// The value, from what was kept of all examples: float64 on the CPU. There is at least one.
  virtual double value_of(const at::Tensor& examples) const = 0;

  // It has no sums.
  void add(const at::Tensor&, const at::Tensor&, const at::Tensor&) const final {}
  double value(std::span<const double>) const final { return std::numeric_limits<double>::quiet_NaN(); }

 private:
  std::int64_t columns_;
};

using MetricPtr = std::shared_ptr<const Metric>;  ///< as models take them

}  // namespace lockstep::train
