#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/distribute/input_options.h"

// How a global batch becomes one batch per replica: pure arithmetic, for any number of workers and replicas.
namespace lockstep::data {

/// The number of workers, replicas per worker, and the worker in question.
struct ClusterShape {
  int workers = 1;
  int replicas_per_worker = 1;
  int worker = 0;

  int replicas() const { return workers * replicas_per_worker; }
  bool operator==(const ClusterShape&) const = default;
};

/// Throws InvalidArgument unless there is at least one worker and one replica and `worker` is one of them.
LOCKSTEP_EXPORT void check(const ClusterShape& shape);

inline constexpr std::int64_t kUnknownBatchSize = -1;

/// How batches are cut: evenly by `distribute` and `strategy.split`, or by one of TensorFlow's two rules.
enum class SplitRule {
  None,           ///< a single replica: batches unchanged
  Even,           ///< each batch separately, into N pieces that differ by at most one row, the larger ones first
  CeilSplit,      ///< each batch separately, into N pieces of ceil(b / N) rows; the last ones may be short or empty
  BalancedStream  ///< the rows as one stream, cut by the cycle of the N sizes of an evenly cut batch
};
LOCKSTEP_EXPORT std::string_view to_string(SplitRule rule);

/// Rows [begin, end) of a batch.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

/// Piece `k` of `pieces` of a batch of `rows` rows that is cut on its own: SplitRule::Even or CeilSplit.
///
///     cut(SplitRule::Even, 9, 4, k)       // 3, 2, 2 and 2 rows
///     cut(SplitRule::CeilSplit, 9, 4, k)  // 3, 3, 3 and 0 rows
LOCKSTEP_EXPORT RowRange cut(SplitRule rule, std::int64_t rows, int pieces, int k);

/// Which of TensorFlow's rules cuts the batches. It follows from how workers share the data; a single worker applies it
/// too.
///
///     shared by        rule
///     Data             CeilSplit: workers that all cut every batch must find the same borders in it
///     File, Hint, Off  BalancedStream: every worker cuts a stream of its own
///
/// Without a known batch size there is no cycle of sizes: CeilSplit.
LOCKSTEP_EXPORT SplitRule choose_split(AutoShardPolicy by, std::int64_t global_batch_size, int replicas);

/// The cycle of N sizes by which `shape.worker` cuts the stream: the sizes of all replicas, starting with its own. Over
/// all workers the sizes of one step sum to the global batch size.
///
///     balanced_sizes(10, {.workers = 2, .replicas_per_worker = 2, .worker = 1});  // 2, 2, 3, 3
LOCKSTEP_EXPORT std::vector<std::int64_t> balanced_sizes(std::int64_t global_batch_size, const ClusterShape& shape);

/// The pieces of one step, by number, of the replicas of `shape.worker`, in order. For the text of plans;
/// step_source.cpp takes them.
LOCKSTEP_EXPORT std::vector<int> pieces_of_worker(const ClusterShape& shape, Assignment assignment);

}  // namespace lockstep::data
