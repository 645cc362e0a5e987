#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/dtype.h"

namespace lockstep {

/// Which tensors travel together, as lists of their indices.
using Packs = std::vector<std::vector<std::size_t>>;

/// Groups tensors of the given sizes in order. A new pack begins when the current one is larger than `bytes_per_pack`,
/// so packs reach the limit and tend to exceed it: four tensors of 100 bytes and a limit of 200 make {0, 1, 2} and {3}.
/// A limit of 0 means one pack with everything.
LOCKSTEP_EXPORT Packs group_by_size(const std::vector<std::size_t>& bytes, std::int64_t bytes_per_pack);

/// A tensor of a batch.
struct PackLeaf {
  std::size_t bytes;
  Dtype dtype;
};

/// How a batch is packed: last tensor first, because gradients become ready from the last layer on, and each pack of
/// one dtype, because a pack is one array on the wire. Every tensor is in exactly one pack.
LOCKSTEP_EXPORT Packs plan_packs(const std::vector<PackLeaf>& leaves, std::int64_t bytes_per_pack);

/// The lengths of the `num_packs` pieces when arrays of the given lengths are joined and cut evenly; the last piece
/// takes the rest. Lengths {5, 5} in 3 packs: {3, 3, 4}.
LOCKSTEP_EXPORT std::vector<std::size_t> concat_and_split_sizes(const std::vector<std::size_t>& sizes, int num_packs);

}  // namespace lockstep
