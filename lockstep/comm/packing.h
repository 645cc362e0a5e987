#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep {

/// Which tensors are sent together, as lists of their indices.
using Packs = std::vector<std::vector<std::size_t>>;

/// Groups tensors of the given sizes in order. A new pack begins when the current one is larger than `bytes_per_pack`,
/// so packs reach the limit and tend to exceed it: four tensors of 100 bytes and a limit of 200 make {0, 1, 2} and {3}.
/// A limit of 0 means one pack with everything.
LOCKSTEP_EXPORT Packs group_by_size(const std::vector<std::size_t>& bytes, std::int64_t bytes_per_pack);

/// Throws InvalidArgument unless a batch can be cut into `num_packs` packs; 0 means no packing.
LOCKSTEP_EXPORT void check_num_packs(int num_packs);

/// The lengths of the `num_packs` pieces when arrays of the given lengths are concatenated and cut evenly; the last
/// piece takes the rest. Lengths {5, 5} in 3 packs: {3, 3, 4}.
LOCKSTEP_EXPORT std::vector<std::size_t> concat_and_split_sizes(const std::vector<std::size_t>& sizes, int num_packs);

}  // namespace lockstep
