#include "lockstep/data/distribute/split.h"

#include <algorithm>

#include "lockstep/data/errors.h"

namespace lockstep::data {

void check(const ClusterShape& shape) {
  if (shape.workers < 1 || shape.replicas_per_worker < 1) {
    throw InvalidArgument(errors::kBadOption, {.what = str("workers and replicas_per_worker must be >= 1, got ",
                                                           shape.workers, " and ", shape.replicas_per_worker),
                                               .help = "give workers and replicas_per_worker of 1 or more"});
  }
  if (shape.worker < 0 || shape.worker >= shape.workers) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("worker must be from 0 to ", shape.workers - 1, ", got ", shape.worker),
                           .help = "count workers from 0"});
  }
}

std::string_view to_string(SplitRule rule) {
  switch (rule) {
    case SplitRule::None: return "not split";
    case SplitRule::Even: return "cut evenly";
    case SplitRule::CeilSplit: return "ceil split";
    case SplitRule::BalancedStream: return "balanced stream";
  }
  return "";
}

RowRange cut(SplitRule rule, std::int64_t rows, int pieces, int k) {
  if (rule == SplitRule::CeilSplit) {
    const std::int64_t interval = (rows + pieces - 1) / pieces;
    const std::int64_t begin = std::min(k * interval, rows);
    return {begin, std::min(begin + interval, rows)};
  }
  const std::int64_t size = rows / pieces, larger = rows % pieces;
  const auto begin_of = [&](std::int64_t piece) { return piece * size + std::min(piece, larger); };
  return {begin_of(k), begin_of(k + 1)};
}

SplitRule choose_split(AutoShardPolicy by, std::int64_t global_batch_size, int replicas) {
  if (replicas == 1) return SplitRule::None;
  if (global_batch_size == kUnknownBatchSize) return SplitRule::CeilSplit;
  return by == AutoShardPolicy::Data ? SplitRule::CeilSplit : SplitRule::BalancedStream;
}

std::vector<std::int64_t> balanced_sizes(std::int64_t global_batch_size, const ClusterShape& shape) {
  check(shape);
  if (global_batch_size < 0) {
    throw InvalidArgument(errors::kBadOption, {.what = str("global_batch_size must be >= 0, got ", global_batch_size),
                                               .help = "give the number of rows of a batch before it is cut"});
  }
  std::vector<std::int64_t> sizes;
  for (int k = 0; k < shape.replicas(); ++k)
    sizes.push_back(cut(SplitRule::Even, global_batch_size, shape.replicas(), k).size());
  std::rotate(sizes.begin(), sizes.begin() + shape.worker * shape.replicas_per_worker, sizes.end());
  return sizes;
}

std::vector<int> pieces_of_worker(const ClusterShape& shape, Assignment assignment) {
  std::vector<int> pieces;
  for (int j = 0; j < shape.replicas_per_worker; ++j) {
    pieces.push_back(assignment == Assignment::ByReplica ? shape.worker * shape.replicas_per_worker + j
                                                         : shape.worker + j * shape.workers);
  }
  return pieces;
}

}  // namespace lockstep::data
