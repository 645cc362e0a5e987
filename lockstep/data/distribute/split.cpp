#include "lockstep/data/distribute/split.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {

void check(const ClusterShape& shape) {
  if (shape.workers < 1 || shape.replicas_per_worker < 1) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = "a cluster has at least one worker, and a worker at least one replica",
                           .seen = str(shape.workers, " workers of ", shape.replicas_per_worker, " replicas"),
                           .help = "give workers and replicas_per_worker of 1 or more"});
  }
  if (shape.worker < 0 || shape.worker >= shape.workers) {
    throw InvalidArgument(errors::kBadOption, {.what = str("there is no worker ", shape.worker),
                                               .seen = str("workers 0 to ", shape.workers - 1),
                                               .help = "workers are counted from 0"});
  }
}

std::string_view to_string(SplitRule rule) {
  switch (rule) {
    case SplitRule::None: return "not split";
    case SplitRule::CeilSplit: return "ceil split";
    case SplitRule::BalancedStream: return "balanced stream";
  }
  return "";
}

SplitRule choose_split(std::int64_t global_batch_size, bool shards_by_data, int replicas) {
  if (replicas == 1) return SplitRule::None;
  return global_batch_size == kUnknownBatchSize || shards_by_data ? SplitRule::CeilSplit : SplitRule::BalancedStream;
}

std::vector<std::int64_t> balanced_sizes(std::int64_t global_batch_size, const ClusterShape& shape) {
  check(shape);
  if (global_batch_size < 0) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("a global batch has no negative size, such as ", global_batch_size),
                           .help = "give the number of rows of a batch before it is cut"});
  }
  const std::int64_t replicas = shape.replicas();
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(replicas), global_batch_size / replicas);
  std::for_each_n(sizes.begin(), global_batch_size % replicas, [](std::int64_t& size) { ++size; });
  std::rotate(sizes.begin(), sizes.begin() + shape.worker * shape.replicas_per_worker, sizes.end());
  return sizes;
}

RowRange ceil_piece(std::int64_t rows, int pieces, int k) {
  const std::int64_t interval = (rows + pieces - 1) / pieces;
  const std::int64_t begin = std::min(k * interval, rows);
  return {begin, std::min(begin + interval, rows)};
}

std::vector<RowRange> ceil_split(std::int64_t rows, int pieces) {
  std::vector<RowRange> ranges;
  for (int k = 0; k < pieces; ++k) ranges.push_back(ceil_piece(rows, pieces, k));
  return ranges;
}

BalancedCutter::BalancedCutter(std::vector<std::int64_t> sizes, bool drop_remainder)
    : sizes_(std::move(sizes)), drop_remainder_(drop_remainder) {
  if (sizes_.empty() || std::ranges::any_of(sizes_, [](std::int64_t size) { return size < 0; })) {
    throw InvalidArgument(errors::kBadOption, {.what = "rebatch needs at least one size, and none below 0",
                                               .where = "rebatch",
                                               .help = "give the numbers of rows of the batches, such as {3, 3, 2}"});
  }
  if (std::ranges::all_of(sizes_, [](std::int64_t size) { return size == 0; })) {
    throw InvalidArgument(errors::kBadOption, {.what = "rebatch needs a size above 0, or it would never end",
                                               .where = "rebatch",
                                               .seen = counted(static_cast<long long>(sizes_.size()), "size") + " of 0",
                                               .help = "give the numbers of rows of the batches, such as {3, 3, 2}"});
  }
}

bool BalancedCutter::accepts(std::int64_t available) const {
  if (wanted() == 0) return true;
  return drop_remainder_ ? available == wanted() : available > 0;
}

std::int64_t BalancedCutter::cycle_rows() const {
  return std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
}

std::vector<std::int64_t> pieces_of_stream(std::int64_t rows, const std::vector<std::int64_t>& sizes,
                                           bool drop_remainder) {
  BalancedCutter cutter(sizes, drop_remainder);
  std::vector<std::int64_t> pieces;
  while (true) {
    const std::int64_t available = std::min(rows, cutter.wanted());
    if (!cutter.accepts(available)) return pieces;
    pieces.push_back(available);
    if (available < cutter.wanted()) return pieces;
    rows -= available;
    cutter.advance();
  }
}

ReplicaPlace place_of_piece(int k, const ClusterShape& shape, Assignment assignment) {
  if (assignment == Assignment::ByReplica) return {k / shape.replicas_per_worker, k % shape.replicas_per_worker};
  return {k % shape.workers, k / shape.workers};
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
