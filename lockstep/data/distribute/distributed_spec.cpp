#include "lockstep/data/distribute/distributed_spec.h"

#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

std::vector<StaticShape> with_rows(std::vector<StaticShape> shapes, std::int64_t rows) {
  for (StaticShape& shape : shapes) {
    if (!shape.empty()) shape.front() = rows;
  }
  return shapes;
}

/// The first known number of rows, if all known ones are the same.
std::int64_t common_rows(const std::vector<StaticShape>& shapes) {
  std::int64_t rows = kUnknownDim;
  for (const StaticShape& shape : shapes) {
    if (shape.empty() || shape.front() == kUnknownDim) continue;
    if (rows != kUnknownDim && rows != shape.front()) return kUnknownDim;
    rows = shape.front();
  }
  return rows;
}

}  // namespace

std::vector<StaticShape> rebatched_shapes(const std::vector<StaticShape>& shapes,
                                          const std::vector<std::int64_t>& sizes, bool drop_remainder) {
  const std::int64_t size = sizes.front();
  const bool equal = std::ranges::all_of(sizes, [&](std::int64_t other) { return other == size; });
  const std::int64_t rows = common_rows(shapes);
  const bool no_remainder = drop_remainder || (rows != kUnknownDim && size > 0 && rows % size == 0);
  return with_rows(shapes, equal && no_remainder ? size : kUnknownDim);
}

std::vector<StaticShape> ceil_split_shapes(const std::vector<StaticShape>& shapes, int pieces) {
  std::vector<StaticShape> split = shapes;
  for (StaticShape& shape : split) {
    if (shape.empty() || shape.front() == kUnknownDim) continue;
    shape.front() = shape.front() % pieces == 0 ? shape.front() / pieces : kUnknownDim;
  }
  return split;
}

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
