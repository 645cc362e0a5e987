#include "lockstep/train/meters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/step_recorder.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/fail_together.h"
#include "lockstep/strategy/replica_context.h"
#include "lockstep/strategy/values_of_all.h"
#include "lockstep/train/metrics/add.h"
#include "lockstep/train/monitored.h"
#include "lockstep/train/require_option.h"
#include "lockstep/train/select.h"

namespace lockstep::train {
namespace {

std::string names_of(const std::map<std::string, at::Tensor>& sums) {
  return sums.empty() ? "nothing" : detail::names_in(sums);
}

void require_different_names(const std::vector<MetricPtr>& metrics) {
  std::set<std::string> names;
  for (const MetricPtr& metric : metrics) {
    detail::require_option(metric != nullptr, "metrics", "a metric must not be null",
                           "use ls::train::metrics, or std::make_shared of your own class");
    detail::require_option(names.insert(metric->name()).second, "metrics",
                           str("two metrics have the name \"", metric->name(), "\""), "give one of them another .name");
  }
}

/// Without a wait: the numbers of one replica, to be brought together with others'.
at::Tensor flat(const std::map<std::string, at::Tensor>& sums) {
  std::vector<at::Tensor> parts;
  for (const auto& [name, tensor] : sums) parts.push_back(tensor);
  return parts.empty() ? at::zeros({0}, at::kDouble) : at::cat(parts);
}

/// Whether the entry has those of exactly this strategy's replicas: of all workers, or of this one.
bool holds_replicas_of(Strategy& strategy, const std::map<int, at::Tensor>& entry) {
  std::set<int> mine, all;
  for (int k = 0; k < strategy.num_local_replicas(); ++k)
    mine.insert(strategy.replica_context(k).replica_id_in_sync_group());
  for (int id = 0; id < strategy.num_replicas_in_sync(); ++id) all.insert(id);
  std::set<int> ids;
  for (const auto& [id, tensor] : entry) ids.insert(id);
  return ids == mine || ids == all;
}

/// What all replicas have together.
at::Tensor all_of(const std::map<int, at::Tensor>& entry, bool gathers) {
  std::vector<at::Tensor> parts;
  for (const auto& [id, tensor] : entry) parts.push_back(tensor);
  if (gathers) return at::cat(parts);
  at::Tensor total = at::zeros_like(parts.at(0));
  for (const at::Tensor& part : parts) total.add_(part);
  return total;
}

const GatheredMetric* gathered(const Metric& metric) {
  return dynamic_cast<const GatheredMetric*>(&detail::measuring(metric));
}

/// What is kept would grow only once.
void refuse_if_recording(const Strategy& strategy, const std::string& metric) {
  const auto* const recorder = lockstep::detail::StrategyAccess::runs(strategy).recorder;
  if (recorder != nullptr && recorder->is_recording())
    throw lockstep::detail::CannotRecord("metric \"" + metric + "\" keeps all examples");
}

}  // namespace

Meters::Meters(Strategy& strategy, std::vector<MetricPtr> metrics)
    : strategy_(&strategy), metrics_(std::move(metrics)) {
  require_different_names(metrics_);
  replicas_.resize(static_cast<std::size_t>(strategy.num_local_replicas()));
  kept_.resize(replicas_.size());
}

std::size_t Meters::my_index() const {
  const ReplicaContext& replica = get_replica_context();
  if (&replica.strategy() != strategy_) {
    throw FailedPrecondition(errors::kMixedStrategies, {.what = "meters belong inside the run of their own strategy",
                                                        .help = "make meters with the strategy that calls run"});
  }
  return static_cast<std::size_t>(replica.local_index());
}

at::Tensor& Meters::slot(Sums& sums, const std::string& name, std::int64_t count) const {
  const auto found = sums.find(name);
  if (found != sums.end()) return found->second;
  const auto device = get_replica_context().device();
  return sums.emplace(name, at::zeros({count}, at::TensorOptions(at::kDouble).device(device))).first->second;
}

void Meters::add(const at::Tensor& output, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  const at::Tensor seen = output.detach();
  for (const MetricPtr& metric : metrics_) add_measured(*metric, detail::measured_of(*metric, seen, target));
}

void Meters::add(const detail::Prediction& prediction) {
  const at::NoGradGuard no_grad;
  for (const MetricPtr& metric : metrics_) add_measured(*metric, detail::measured_of(*metric, prediction));
}

void Meters::add_measured(const Metric& metric, const detail::Selected& of) {
  Sums& sums = replicas_[my_index()];
  if (const GatheredMetric* const all = gathered(metric))
    keep(*all, of.output, of.target);
  else
    detail::measuring(metric).add(slot(sums, metric.name(), metric.sums()), of.output, of.target);
}

void Meters::keep(const GatheredMetric& metric, const at::Tensor& output, const at::Tensor& target) {
  refuse_if_recording(*strategy_, metric.name());
  at::Tensor examples = metric.keep(output.detach(), target);
  if (examples.dim() != 2 || examples.size(1) != metric.columns()) {
    throw InvalidArgument(errors::kStructure,
                          {.what = lockstep::str("metric \"", metric.name(), "\" keeps ", metric.columns(),
                                                 " numbers of each example, got a tensor ", examples.sizes()),
                           .help = "return a tensor [examples, columns] from its keep"});
  }
  kept_[my_index()][metric.name()].push_back(std::move(examples));
}

at::Tensor Meters::kept_by(std::size_t k, const GatheredMetric& metric) const {
  const auto kept = kept_[k].find(metric.name());
  if (kept == kept_[k].end() || kept->second.empty()) return at::zeros({0, metric.columns()}, at::kDouble);
  return at::cat(kept->second).cpu().to(at::kDouble);
}

void Meters::add_mean(const std::string& name, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  for (const MetricPtr& metric : metrics_) {
    if (metric->name() != name) continue;
    throw InvalidArgument(errors::kBadOption, {.what = str("a metric and a mean have the name \"", name, "\""),
                                               .help = "give the metric another .name"});
  }
  const at::Tensor& sums = slot(replicas_[my_index()], name, 2);
  metrics::add_sum(sums, 0, values);
  metrics::add_number(sums, 1, static_cast<double>(values.numel()));
}

void Meters::reset() {
  for (Sums& sums : replicas_) {
    for (auto& [name, tensor] : sums) tensor.zero_();  // where it is: a recorded step adds to this memory
  }
  for (Kept& kept : kept_) kept.clear();
}

void Meters::require_same_names() const {
  const std::string first = names_of(replicas_[0]);
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    const std::string others = names_of(replicas_[k]);
    if (others == first) continue;
    throw InvalidArgument(errors::kStructure,
                          {.what = str("replica ", k, " has logged ", others, ", and replica 0 ", first),
                           .help = "log the same names on every replica, also where it has no rows"});
  }
}

Logs Meters::finish(const Sums& total, std::map<std::string, std::vector<double>>& sums, bool of_all_workers) const {
  const at::Tensor numbers = flat(total).cpu().contiguous();
  const double* next = numbers.data_ptr<double>();
  std::map<std::string, const Metric*> metrics;
  for (const MetricPtr& metric : metrics_) metrics.emplace(metric->name(), metric.get());
  Logs logs;
  for (const auto& [name, tensor] : total) {
    const std::vector<double>& mine = sums[name] = std::vector<double>(next, next + tensor.numel());
    next += tensor.numel();
    const auto metric = metrics.find(name);
    const double value = metric == metrics.end() ? mine[0] / mine[1] : metric->second->value(mine);
    // Validation need not add what training adds.
    const bool is_without_rows = std::isnan(value) && std::ranges::all_of(mine, [](double sum) { return sum == 0; });
    if (!is_without_rows || !of_all_workers) logs[name] = value;
  }
  return logs;
}

Logs Meters::values() {
  const at::NoGradGuard no_grad;
  const auto parts = lockstep::detail::or_fail_together(*strategy_, "Meters::values", [&] {
    require_same_names();
    return PerReplica<Sums>(replicas_);
  });
  last_sums_.clear();
  Logs logs;
  if (!replicas_[0].empty() || strategy_->num_workers() > 1)
    logs = finish(strategy_->reduce(ReduceOp::Sum, parts), last_sums_, /*of_all_workers=*/true);
  for (const MetricPtr& metric : metrics_) {
    const GatheredMetric* const all = gathered(*metric);
    if (all == nullptr) continue;
    std::vector<at::Tensor> mine;
    for (std::size_t k = 0; k < kept_.size(); ++k) mine.push_back(kept_by(k, *all));
    const at::Tensor examples = at::cat(lockstep::detail::of_all_replicas(*strategy_, mine)).contiguous();
    if (examples.size(0) > 0) logs[all->name()] = all->value_of(examples);
  }
  return logs;
}

Logs Meters::values_here() const {
  const at::NoGradGuard no_grad;
  require_same_names();
  Sums total;
  for (const Sums& sums : replicas_) {
    for (const auto& [name, tensor] : sums) {
      const auto [slot, is_new] = total.emplace(name, tensor);
      if (!is_new) slot->second = slot->second.add(tensor.to(slot->second.device()));
    }
  }
  std::map<std::string, std::vector<double>> unused;
  return finish(total, unused, /*of_all_workers=*/false);
}

void Meters::capture(Snapshot& into, const std::string& name) const {
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    const int id = strategy_->replica_context(static_cast<int>(k)).replica_id_in_sync_group();
    for (const auto& [metric, tensor] : replicas_[k]) into.by_replica[name + "/" + metric][id] = tensor.cpu().clone();
    for (const MetricPtr& metric : metrics_) {
      if (const GatheredMetric* const all = gathered(*metric))
        into.by_replica[name + "/" + all->name()][id] = kept_by(k, *all).clone();
    }
  }
}

void Meters::check(const Snapshot& from, const std::string& name) const {
  for (const MetricPtr& metric : metrics_) {
    const auto entry = from.by_replica.find(name + "/" + metric->name());
    if (entry == from.by_replica.end()) continue;  // nothing was added before it was captured
    const GatheredMetric* const all = gathered(*metric);
    for (const auto& [id, tensor] : entry->second) {
      const bool has_sums = all == nullptr && tensor.dim() == 1;
      if (has_sums ? tensor.numel() == metric->sums()
                   : all != nullptr && tensor.dim() == 2 && tensor.size(1) == all->columns())
        continue;
      const std::string differs =
          has_sums ? str("has ", metric->sums(), " sums, and the snapshot ", tensor.numel())
                   : str("is one of ", all != nullptr ? "all examples" : "sums", ", and that of the snapshot is not");
      throw InvalidArgument(errors::kSavedState,
                            {.what = str("metric \"", metric->name(), "\" ", differs),
                             .where = name,
                             .help = "make the metric with the options that it had when the snapshot was taken"});
    }
  }
}

void Meters::restore(const Snapshot& from, const std::string& name) {
  check(from, name);
  std::vector<Sums> restored(replicas_.size());
  std::vector<Kept> kept(replicas_.size());
  std::set<std::string> gathering;
  for (const MetricPtr& metric : metrics_) {
    if (gathered(*metric) != nullptr) gathering.insert(metric->name());
  }
  const std::string prefix = name + "/";
  for (auto entry = from.by_replica.lower_bound(prefix);
       entry != from.by_replica.end() && entry->first.starts_with(prefix); ++entry) {
    const std::string metric = entry->first.substr(prefix.size());
    const bool gathers = gathering.contains(metric);
    if (!gathers && entry->second.begin()->second.dim() != 1) continue;  // of a metric that there was
    at::Tensor total = all_of(entry->second, gathers);
    const bool is_mine = holds_replicas_of(*strategy_, entry->second);
    for (std::size_t k = 0; k < restored.size(); ++k) {
      const ReplicaContext& replica = strategy_->replica_context(static_cast<int>(k));
      const int id = replica.replica_id_in_sync_group();
      // What another number of replicas had all goes to the first one.
      const at::Tensor none = gathers ? total.slice(0, 0, 0) : at::zeros_like(total);
      const at::Tensor value = (is_mine ? entry->second.at(id) : id == 0 ? total : none).clone().to(replica.device());
      if (gathers)
        kept[k][metric] = {value};
      else
        restored[k][metric] = value;
    }
  }
  replicas_ = std::move(restored);
  kept_ = std::move(kept);
}

}  // namespace lockstep::train
