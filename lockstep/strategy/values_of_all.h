#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/values/per_replica.h"
#include "lockstep/values/reducible.h"

// What the replicas of all workers have, in replica order. What other workers have comes from there: all workers must make
// these calls.
namespace lockstep::detail {

LOCKSTEP_EXPORT std::vector<at::Tensor> of_all_replicas(const Strategy& strategy, const std::vector<at::Tensor>& mine);
LOCKSTEP_EXPORT std::vector<std::string> of_all_replicas(const Strategy& strategy,
                                                         const std::vector<std::string>& mine);

/// Lists of texts, of any length each.
LOCKSTEP_EXPORT std::vector<std::vector<std::string>> lists_of_all_replicas(
    const Strategy& strategy, const std::vector<std::vector<std::string>>& mine);

/// The values of each replica of all workers, taken apart. `structures` has the different ones of each replica's values and
/// `like` the parts of one value. Throws on every worker unless all have one structure: values are put together again like
/// one of this worker or, where a worker has none, like an empty one, whose structure is `of_none`.
using Leaves = std::vector<ReducibleLeaf>;
LOCKSTEP_EXPORT std::vector<std::vector<Leaves>> leaves_of_all_replicas(
    const Strategy& strategy, const std::vector<std::vector<Leaves>>& mine,
    const std::vector<std::set<std::string>>& structures, const Leaves& like, const std::string& of_none);

/// The lists of all replicas, of any length each, of structures of tensors and numbers.
template <class T>
std::vector<std::vector<T>> lists_of_all_replicas(const Strategy& strategy, const std::vector<std::vector<T>>& mine) {
  if (strategy.num_workers() == 1) return mine;
  std::optional<T> none;
  if constexpr (std::is_default_constructible_v<T>) none.emplace();
  const T* like = none ? &*none : nullptr;
  std::vector<std::vector<Leaves>> leaves;
  std::vector<std::set<std::string>> structures;
  for (const std::vector<T>& values : mine) {
    leaves.emplace_back();
    structures.emplace_back();
    for (const T& value : values) {
      leaves.back().push_back(flatten_reducible(value, LeafPurpose::Gather));
      structures.back().insert(structure_string(value));
      like = &value;
    }
  }
  std::vector<std::vector<T>> all;
  const Leaves parts = like ? flatten_reducible(*like, LeafPurpose::Gather) : Leaves();
  const std::string of_none = none ? structure_string(*none) : "unknown";
  for (auto& replica : leaves_of_all_replicas(strategy, leaves, structures, parts, of_none)) {
    all.emplace_back();
    for (Leaves& value : replica)
      all.back().push_back(unflatten_reducible(*like, std::move(value), LeafPurpose::Gather));
  }
  return all;
}

/// One value of each replica.
template <class T>
std::vector<T> of_all_replicas(const Strategy& strategy, const std::vector<T>& mine) {
  std::vector<std::vector<T>> lists;
  for (const T& value : mine) lists.push_back({value});
  std::vector<T> all;
  for (auto& list : lists_of_all_replicas(strategy, lists)) all.push_back(std::move(list.at(0)));
  return all;
}

template <class T>
std::vector<T> of_all_replicas(const Strategy& strategy, const PerReplica<T>& mine) {
  return of_all_replicas(strategy, std::vector<T>(mine.begin(), mine.end()));
}

/// In which order the components of a Mirrored on devices by name are listed: in that of the replicas, then by name.
LOCKSTEP_EXPORT std::vector<std::size_t> order_of(const Placement& placement, const Devices& of_all_replicas);

/// The components of all workers, where `devices` are those of all replicas. Those of a Mirrored on devices by name are all
/// here.
template <class Value>
auto components_of_all(const Strategy& strategy, const Devices& devices, const Value& value) {
  std::vector<typename Value::value_type> all;
  if constexpr (requires { value.placement(); }) {
    if (value.placement()) {
      for (const std::size_t k : order_of(*value.placement(), devices)) all.push_back(value[k]);
      return all;
    }
  }
  all.assign(value.begin(), value.end());
  const bool is_of_replicas = all.size() == static_cast<std::size_t>(strategy.num_local_replicas());
  return is_of_replicas ? of_all_replicas(strategy, all) : all;
}

/// InvalidArgument unless there is a value for each local replica.
LOCKSTEP_EXPORT void require_one_for_each(const Strategy& strategy, std::size_t values, const char* operation);

}  // namespace lockstep::detail

namespace lockstep {

/// The values of all replicas of all workers, in replica order, on every worker; `local_results` gives those of this process.
/// All workers must call it, outside of replicas. Values are tensors, of any shapes, numbers and structures of them.
///
///     const std::vector<double> losses = ls::values_of_all(strategy, loss);
template <class T>
std::vector<T> values_of_all(const Strategy& strategy, const PerReplica<T>& values) {
  detail::require_cross_replica(strategy, "values_of_all");
  detail::require_one_for_each(strategy, values.size(), "values_of_all");
  return detail::of_all_replicas(strategy, values);
}

}  // namespace lockstep
