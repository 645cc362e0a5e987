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
#include "lockstep/strategy/fail_together.h"
#include "lockstep/strategy/replica_context.h"

namespace lockstep::train {
namespace {

std::string names_of(const std::map<std::string, at::Tensor>& sums) {
  std::string names;
  for (const auto& [name, unused] : sums) names += lockstep::str(names.empty() ? "" : ", ", name);
  return names.empty() ? "nothing" : names;
}

void require_different_names(const std::vector<MetricPtr>& metrics) {
  std::set<std::string> names;
  for (const MetricPtr& metric : metrics) {
    if (metric == nullptr)
      throw InvalidArgument(errors::kBadOption,
                            {.what = "a metric must not be null",
                             .help = "use ls::train::metrics, or std::make_shared of your own class"});
    if (names.insert(metric->name()).second) continue;
    throw InvalidArgument(errors::kBadOption, {.what = str("two metrics have the name \"", metric->name(), "\""),
                                               .help = "give one of them another .name"});
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

}  // namespace

Meters::Meters(Strategy& strategy, std::vector<MetricPtr> metrics)
    : strategy_(&strategy), metrics_(std::move(metrics)) {
  require_different_names(metrics_);
  replicas_.resize(static_cast<std::size_t>(strategy.num_local_replicas()));
}

Meters::Sums& Meters::mine() {
  const ReplicaContext& replica = get_replica_context();
  if (&replica.strategy() != strategy_) {
    throw FailedPrecondition(errors::kMixedStrategies, {.what = "meters belong inside the run of their own strategy",
                                                        .help = "make meters with the strategy that calls run"});
  }
  return replicas_[static_cast<std::size_t>(replica.local_index())];
}

at::Tensor& Meters::slot(Sums& sums, const std::string& name, std::int64_t count) const {
  const auto found = sums.find(name);
  if (found != sums.end()) return found->second;
  const auto device = get_replica_context().device();
  return sums.emplace(name, at::zeros({count}, at::TensorOptions(at::kDouble).device(device))).first->second;
}

void Meters::add(const at::Tensor& output, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  Sums& sums = mine();
  const at::Tensor seen = output.detach();
  for (const MetricPtr& metric : metrics_) metric->add(slot(sums, metric->name(), metric->sums()), seen, target);
}

void Meters::add_mean(const std::string& name, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  for (const MetricPtr& metric : metrics_) {
    if (metric->name() != name) continue;
    throw InvalidArgument(errors::kBadOption, {.what = str("a metric and a mean have the name \"", name, "\""),
                                               .help = "give the metric another .name"});
  }
  at::Tensor& sums = slot(mine(), name, 2);
  sums.select(0, 0).add_(values.detach().sum(at::kDouble));
  sums.select(0, 1).add_(values.numel());
}

void Meters::reset() {
  for (Sums& sums : replicas_) {
    for (auto& [name, tensor] : sums) tensor.zero_();  // where it is: a recorded step adds to this memory
  }
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
  if (replicas_[0].empty() && strategy_->num_workers() == 1) return {};
  return finish(strategy_->reduce(ReduceOp::Sum, parts), last_sums_, /*of_all_workers=*/true);
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
  }
}

void Meters::check(const Snapshot& from, const std::string& name) const {
  for (const MetricPtr& metric : metrics_) {
    const auto entry = from.by_replica.find(name + "/" + metric->name());
    if (entry == from.by_replica.end()) continue;  // nothing was added before it was captured
    for (const auto& [id, tensor] : entry->second) {
      if (tensor.numel() == metric->sums()) continue;
      throw InvalidArgument(errors::kSavedState,
                            {.what = str("metric \"", metric->name(), "\" has ", metric->sums(),
                                         " sums, and the snapshot ", tensor.numel()),
                             .where = name,
                             .help = "make the metric with the options that it had when the snapshot was taken"});
    }
  }
}

void Meters::restore(const Snapshot& from, const std::string& name) {
  check(from, name);
  std::vector<Sums> restored(replicas_.size());
  const std::string prefix = name + "/";
  for (auto entry = from.by_replica.lower_bound(prefix);
       entry != from.by_replica.end() && entry->first.starts_with(prefix); ++entry) {
    const std::string metric = entry->first.substr(prefix.size());
    at::Tensor total = at::zeros_like(entry->second.begin()->second);
    for (const auto& [id, tensor] : entry->second) total.add_(tensor);
    const bool is_mine = holds_replicas_of(*strategy_, entry->second);
    for (std::size_t k = 0; k < restored.size(); ++k) {
      const ReplicaContext& replica = strategy_->replica_context(static_cast<int>(k));
      const int id = replica.replica_id_in_sync_group();
      // The sums of another number of replicas all go to the first one.
      const at::Tensor value = is_mine ? entry->second.at(id) : id == 0 ? total : at::zeros_like(total);
      restored[k][metric] = value.clone().to(replica.device());
    }
  }
  replicas_ = std::move(restored);
}

}  // namespace lockstep::train
