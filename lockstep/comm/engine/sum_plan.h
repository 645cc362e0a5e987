#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/dtype.h"

namespace lockstep::engine {

/// Replica ids lo..hi-1.
struct IdRange {
  int lo;
  int hi;

  bool operator==(const IdRange&) const = default;
};

/// A partial sum and the worker that computes it.
struct SumPiece {
  int worker;
  IdRange ids;

  bool operator==(const SumPiece&) const = default;
};

/// Which worker adds what. Worker w holds replica ids w * replicas .. w * replicas + replicas - 1; the largest subtrees
/// of T(0, workers * replicas) (reduction_tree.h) within that range are what it can sum by itself, its pieces: one if
/// `replicas` is a power of two, otherwise at most 2 log2(replicas).
///
/// The owner of a shard finishes the tree. The pieces are values 0, 1, ...; step i sums its inputs in the tree order of
/// `ordered_sum` and makes value pieces.size() + i. The last step's value is T(0, workers * replicas).
struct SumPlan {
  std::vector<SumPiece> pieces;         ///< in order of ids, so also of workers
  std::vector<std::vector<int>> steps;  ///< inputs of each step; at least one step

  /// The pieces of a worker are first_piece[worker] .. first_piece[worker + 1] - 1.
  std::vector<int> first_piece;
  /// The maximum number of pieces of any worker.
  int most_pieces = 0;
};

LOCKSTEP_EXPORT SumPlan plan_sum(int workers, int replicas);

/// Executes the steps. `values` are the pieces; the other steps' sums go to `room`, `stride` bytes apart, the last
/// one's to all outputs.
LOCKSTEP_EXPORT void finish_sum(const SumPlan& plan, Dtype dtype, std::vector<const void*> values, std::byte* room,
                                std::size_t stride, const std::vector<void*>& outputs, std::size_t elements,
                                std::int64_t divisor);

/// Elements begin..end-1 of an array.
struct Shard {
  std::size_t begin;
  std::size_t end;

  std::size_t size() const { return end - begin; }
  bool operator==(const Shard&) const = default;
};

/// One shard per worker: of the given sizes, or even ones. Cuts of even ones are multiples of 64 elements, so that no
/// two owners write to one cache line; shards differ by at most 64 elements, apart from the last nonempty one.
LOCKSTEP_EXPORT std::vector<Shard> shards_of(std::size_t elements, std::span<const std::uint64_t> counts, int workers);

}  // namespace lockstep::engine
