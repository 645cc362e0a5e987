#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/strategy/snapshot.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/metric.h"

namespace lockstep::train {

namespace detail {
struct Prediction;
struct Selected;
}  // namespace detail

/// The sums of metrics, or what they keep of each example, on each replica's device until they are read.
///
///     ls::train::Meters meters(strategy, {ls::train::metrics::accuracy()});
///     strategy.run([&](const Digits& mine) {
///       auto output = net->forward(mine.images);
///       meters.add(output, mine.labels);
///       meters.add_mean("loss", losses_of(output, mine.labels));
///     }, batch);
///     for (const auto& [name, value] : meters.values()) ...
class LOCKSTEP_EXPORT Meters final : public Stateful {
 public:
  explicit Meters(Strategy& strategy, std::vector<MetricPtr> metrics = {});

  // Inside run, by every replica.

  /// Adds a batch to every metric.
  void add(const at::Tensor& output, const at::Tensor& target);
  void add(const detail::Prediction& prediction);
  /// Adds to the mean `name`, in which each element of `values` counts once, such as one loss for each row. Every replica
  /// names the same means.
  void add_mean(const std::string& name, const at::Tensor& values);

  // Outside of run.

  /// Forgets everything.
  void reset();
  /// Over all replicas of all workers, without what no rows were added to. Every worker must call it; waits for the devices once.
  Logs values();
  /// Over the replicas of this worker; NaN where they had no rows. Without metrics that gather all examples.
  Logs values_here() const;
  /// The sums behind the last `values()`, by metric or mean.
  const std::map<std::string, std::vector<double>>& sums() const { return last_sums_; }

  /// The metrics that it measures, in the order of their values.
  const std::vector<MetricPtr>& metrics() const { return metrics_; }

  void capture(Snapshot& into, const std::string& name) const override;
  void restore(const Snapshot& from, const std::string& name) override;
  void check(const Snapshot& from, const std::string& name) const override;

 private:
  using Sums = std::map<std::string, at::Tensor>;               ///< float64, by metric or mean
  using Kept = std::map<std::string, std::vector<at::Tensor>>;  ///< of each batch, by metric that gathers

  std::size_t my_index() const;
  void add_measured(const Metric& metric, const detail::Selected& of);
  void keep(const GatheredMetric& metric, const at::Tensor& output, const at::Tensor& target);
  /// All that replica `k` has kept, on the CPU in float64.
  at::Tensor kept_by(std::size_t k, const GatheredMetric& metric) const;
  at::Tensor& slot(Sums& sums, const std::string& name, std::int64_t count) const;
  Logs finish(const Sums& total, std::map<std::string, std::vector<double>>& sums, bool of_all_workers) const;
  void require_same_names() const;

  Strategy* strategy_;
  std::vector<MetricPtr> metrics_;
  std::vector<Sums> replicas_;  ///< of this process
  std::vector<Kept> kept_;      ///< likewise
  std::map<std::string, std::vector<double>> last_sums_;
};

}  // namespace lockstep::train
