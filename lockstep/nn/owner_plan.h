#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep {

/// Which replica updates what. Each replica owns some elements of the parameters: it sums their gradients and updates
/// them for all, since replicas on one device share the parameters' memory.

/// Elements [begin, end) of one parameter, in memory order.
struct Segment {
  int parameter = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const Segment&) const = default;
};

struct OwnedParameter {
  std::int64_t elements = 0;
  bool whole = false;  ///< must not be cut: its update depends on all elements together
};

/// Shards are cut at multiples of this many elements from a parameter's start, and sums over elements are made in
/// blocks of the same size: no cut ever splits a block, so such sums have the same bits for every number of replicas.
inline constexpr std::int64_t kShardBlock = 4096;

using OwnerPlan = std::vector<std::vector<Segment>>;  ///< per replica, in order of parameters

/// Cuts the parameters into one contiguous range of blocks per replica, equal to within a block; whole ones are dealt
/// in turn. Every element is in exactly one segment.
LOCKSTEP_EXPORT OwnerPlan plan_owners(const std::vector<OwnedParameter>& parameters, int replicas,
                                      std::int64_t block = kShardBlock);

/// "replica 0: #0[0..4096) #1" and so on, one line per replica.
LOCKSTEP_EXPORT std::string to_string(const OwnerPlan& plan, const std::vector<OwnedParameter>& parameters);

/// Blocks of kShardBlock elements, counted over all parameters.
struct BlockRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  bool operator==(const BlockRange&) const = default;
};

/// Adds the blocks of a segment to `ranges`; adjacent ones are merged. `first_block`: its parameter's first block. An
/// empty parameter has a block too.
LOCKSTEP_EXPORT void add_blocks(const Segment& segment, std::size_t first_block, std::vector<BlockRange>& ranges);

}  // namespace lockstep
