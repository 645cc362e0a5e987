#include "lockstep/data/distribute/distributed_spec.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

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
  const std::vector<ComponentSpec>& all = *dataset.components;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].shape.is_scalar()) continue;
    throw InvalidArgument(
        errors::kShape,
        {.what = "the elements of the dataset hold a scalar, which cannot be shared out among replicas",
         .where = "distribute",
         .seen = str("component ", i, " of ", all.size(), " is a scalar"),
         .help = "call batch() before distribute(), or make per-replica batches in distribute_from_function"});
  }
  const auto rows = [](const ComponentSpec& component) { return component.shape.rows(); };
  if (all.empty() || std::ranges::find(all, PartialShape::kUnknown, rows) != all.end()) return kAskStages;
  return std::ranges::count(all, rows(all.front()), rows) == std::ssize(all) ? rows(all.front()) : kUnknownBatchSize;
}

void check_equal_rows(const ElementSpec& dataset) {
  if (!dataset.components) return;
  const std::vector<ComponentSpec>& all = *dataset.components;
  const auto is_known = [](const ComponentSpec& component) { return component.shape.rows() != PartialShape::kUnknown; };
  const auto first = std::ranges::find_if(all, is_known);
  for (auto other = first; other != all.end(); ++other) {
    if (!is_known(*other) || other->shape.rows() == first->shape.rows()) continue;
    throw InvalidArgument(
        errors::kShape,
        {.what = "the components of an element have different numbers of rows, so they cannot be cut alike",
         .where = "distribute",
         .seen = str("component ", first - all.begin(), " has ", counted(first->shape.rows(), "row"), ", component ",
                     other - all.begin(), " has ", counted(other->shape.rows(), "row")),
         .help = "give all components the same first dimension, or make per-replica batches in "
                 "distribute_from_function"});
  }
}

}  // namespace lockstep::data
