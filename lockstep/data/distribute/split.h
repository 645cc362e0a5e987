#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/distribute/input_options.h"

// How a global batch becomes one batch per replica: pure arithmetic, for any number of workers and replicas.
namespace lockstep::data {

/// Workers of a cluster, replicas of each, and which worker is meant.
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

/// The two rules by which batches are cut.
enum class SplitRule {
  None,           ///< one replica in all: batches as they are
  CeilSplit,      ///< each batch by itself in N pieces of ceil(b / N) rows; the last ones may be short or empty
  BalancedStream  ///< the rows as one stream, cut by a cycle of N sizes that differ by at most one
};
LOCKSTEP_EXPORT std::string_view to_string(SplitRule rule);

/// Which rule is used. `shards_by_data`: the policy is DATA, or AUTO that found no files to share out.
LOCKSTEP_EXPORT SplitRule choose_split(std::int64_t global_batch_size, bool shards_by_data, int replicas);

/// The cycle of N sizes by which `shape.worker` cuts the stream: the sizes of all replicas, those of its own first.
/// Over all workers the sizes of one step sum to the global batch size.
///
///     balanced_sizes(10, {.workers = 2, .replicas_per_worker = 2, .worker = 1});  // 2, 2, 3, 3
LOCKSTEP_EXPORT std::vector<std::int64_t> balanced_sizes(std::int64_t global_batch_size, const ClusterShape& shape);

/// Rows [begin, end) of a batch.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

/// Piece `k` of `pieces` of a batch of `rows` rows by the ceil split.
LOCKSTEP_EXPORT RowRange ceil_piece(std::int64_t rows, int pieces, int k);
/// All of them.
LOCKSTEP_EXPORT std::vector<RowRange> ceil_split(std::int64_t rows, int pieces);

/// Where a balanced stream stands: how the next piece is cut. It ends with a short piece, or when a piece that is not
/// empty is due and no row is left; empty pieces due before that are still dealt.
class LOCKSTEP_EXPORT BalancedCutter {
 public:
  BalancedCutter(std::vector<std::int64_t> sizes, bool drop_remainder = false);

  /// The rows that the next piece should have.
  std::int64_t wanted() const { return sizes_[next_]; }
  /// Given that only `available` rows could be had of those wanted: whether there is a piece.
  bool accepts(std::int64_t available) const;
  void advance() { next_ = (next_ + 1) % sizes_.size(); }

  std::int64_t cycle_length() const { return static_cast<std::int64_t>(sizes_.size()); }
  std::int64_t cycle_rows() const;  ///< rows of a whole cycle

  std::size_t position() const { return next_; }
  void seek(std::size_t position) { next_ = position % sizes_.size(); }

 private:
  std::vector<std::int64_t> sizes_;
  bool drop_remainder_;
  std::size_t next_ = 0;
};

/// The sizes of all pieces that a cutter makes of `rows` rows; for tables and plans.
LOCKSTEP_EXPORT std::vector<std::int64_t> pieces_of_stream(std::int64_t rows, const std::vector<std::int64_t>& sizes,
                                                           bool drop_remainder = false);

/// Which worker and which of its replicas get piece `k` of a step's N pieces when one stream feeds all replicas.
struct ReplicaPlace {
  int worker = 0;
  int local_replica = 0;
  bool operator==(const ReplicaPlace&) const = default;
};
LOCKSTEP_EXPORT ReplicaPlace place_of_piece(int k, const ClusterShape& shape, Assignment assignment);

/// The pieces of one step, by number, that the replicas of `shape.worker` get, in their order.
LOCKSTEP_EXPORT std::vector<int> pieces_of_worker(const ClusterShape& shape, Assignment assignment);

}  // namespace lockstep::data
