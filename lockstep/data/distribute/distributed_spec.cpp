#include "lockstep/data/distribute/distributed_spec.h"

#include <algorithm>

namespace lockstep::data {

ElementSpec distributed_spec(const ElementSpec& dataset, std::int64_t global_batch_size, const ClusterShape& cluster,
                             bool partial_steps) {
  if (cluster.workers > 1 && partial_steps) return dataset.with_rows(PartialShape::kUnknown);
  if (cluster.replicas() == 1) return dataset;
  if (global_batch_size == kUnknownBatchSize) return dataset.ceil_split(cluster.replicas());
  return dataset.rebatched(balanced_sizes(global_batch_size, cluster));
}

bool handles_partial_steps(const ElementSpec& dataset, bool is_infinite, int workers) {
  if (is_infinite) return false;
  return workers > 1 || !dataset.components ||
         !std::ranges::all_of(*dataset.components,
                              [](const ComponentSpec& component) { return component.shape.is_fully_defined(); });
}

std::int64_t batch_size_by_spec(const ElementSpec& dataset) {
  if (!dataset.components) return kAskStages;
  require_dimensions(dataset, "distribute", kHelpForDistribute);
  const std::vector<ComponentSpec>& all = *dataset.components;
  const auto rows = [](const ComponentSpec& component) { return component.shape.rows(); };
  if (all.empty() || std::ranges::find(all, PartialShape::kUnknown, rows) != all.end()) return kAskStages;
  return std::ranges::count(all, rows(all.front()), rows) == std::ssize(all) ? rows(all.front()) : kUnknownBatchSize;
}

}  // namespace lockstep::data
