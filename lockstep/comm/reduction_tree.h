#pragma once

#include <vector>

#include "lockstep/base/export.h"

namespace lockstep {

/// The one order of summation. Floating point sums depend on their order, so there is a single one, and every engine
/// produces its bits: the sum over replicas lo..hi-1 is
///
///     T(lo, hi) = T(lo, mid) + T(mid, hi),   mid = lo + the largest power of two below hi - lo
///
/// with each node rounded to the element type. Over five replicas: ((0+1)+(2+3))+4. Neighbouring replicas are added
/// first, so a worker that holds a few of them can sum most of its own share by itself.

/// Where T(lo, hi) is cut; hi - lo must be at least 2.
constexpr int tree_middle(int lo, int hi) {
  int half = 1;
  while (half < hi - lo - half) half *= 2;
  return lo + half;
}

/// x[into] += x[from].
struct TreeStep {
  int into;
  int from;

  bool operator==(const TreeStep&) const = default;
};

/// The additions that leave T(0, count) in x[0], in an executable order.
LOCKSTEP_EXPORT std::vector<TreeStep> plan_reduction_tree(int count);

}  // namespace lockstep
