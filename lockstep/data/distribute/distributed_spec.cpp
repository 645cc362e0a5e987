#include "lockstep/data/distribute/distributed_spec.h"

#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
std::vector<StaticShape> distributed_shapes(const std::vector<StaticShape>& shapes, std::int64_t global_batch_size,
                                            const ClusterShape& cluster, bool partial_steps) {
  std::vector<StaticShape> split = shapes;
  if (cluster.replicas() > 1) {
    split = global_batch_size == kUnknownBatchSize
                ? ceil_split_shapes(shapes, cluster.replicas())
                : rebatched_shapes(shapes, balanced_sizes(global_batch_size, cluster));
  }
  return function_shapes(split, cluster.workers, partial_steps);
}

std::vector<StaticShape> function_shapes(const std::vector<StaticShape>& shapes, int workers, bool partial_steps) {
  return workers > 1 && partial_steps ? with_rows(shapes, kUnknownDim) : shapes;
}

std::int64_t batch_size_by_shapes(const std::vector<StaticShape>& shapes) {
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (!shapes[i].empty()) continue;
    throw InvalidArgument(
        errors::kShape,
        {.what = str("the elements of the dataset hold a scalar, which cannot be shared out among replicas"),
         .where = "distribute",
         .seen = str("component ", i, " of ", shapes.size(), " is a scalar"),
         .help = "call batch() before distribute(), or make per-replica batches in distribute_from_function"});
  }
  const auto unknown = [](const StaticShape& shape) { return shape.front() == kUnknownDim; };
  if (shapes.empty() || std::ranges::any_of(shapes, unknown)) return kAskStages;
  const auto same = [&](const StaticShape& shape) { return shape.front() == shapes.front().front(); };
  return std::ranges::all_of(shapes, same) ? shapes.front().front() : kUnknownBatchSize;
}

void check_equal_rows(const std::vector<StaticShape>& shapes) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i].empty() || shapes[i].front() == kUnknownDim) continue;
    if (!first) first = i;
    if (shapes[i].front() == shapes[*first].front()) continue;
    throw InvalidArgument(
        errors::kShape,
        {.what = "the components of an element have different numbers of rows, so they cannot be cut alike",
         .where = "distribute",
         .seen = str("component ", *first, " has ", counted(shapes[*first].front(), "row"), ", component ", i, " has ",
                     counted(shapes[i].front(), "row")),
         .help = "give all components the same first dimension, or make per-replica batches in "
                 "distribute_from_function"});
  }
}

}  // namespace lockstep::data
