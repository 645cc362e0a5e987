#include "lockstep/comm/reduction_tree.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

void append_steps(int lo, int hi, std::vector<TreeStep>& steps) {
  if (hi - lo < 2) return;
  const int mid = tree_middle(lo, hi);
  append_steps(lo, mid, steps);
  append_steps(mid, hi, steps);
  steps.push_back({.into = lo, .from = mid});
}

void append_subtrees(Subtree node, int lo, int hi, std::vector<Subtree>& subtrees) {
  if (node.hi <= lo || hi <= node.lo) return;
  if (lo <= node.lo && node.hi <= hi) return subtrees.push_back(node);
  const int mid = tree_middle(node.lo, node.hi);
  append_subtrees({.lo = node.lo, .hi = mid}, lo, hi, subtrees);
  append_subtrees({.lo = mid, .hi = node.hi}, lo, hi, subtrees);
}

}  // namespace

std::vector<TreeStep> plan_reduction_tree(int count) {
  std::vector<TreeStep> steps;
  append_steps(0, count, steps);
  return steps;
}

std::vector<Subtree> aligned_subtrees(int lo, int hi, int count) {
  if (lo < 0 || hi < lo || count < hi) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("replicas must be a range of 0..", count, ", got ", lo, "..", hi),
                           .help = "pass 0 <= lo <= hi <= count"});
  }
  std::vector<Subtree> subtrees;
  append_subtrees({.lo = 0, .hi = count}, lo, hi, subtrees);
  return subtrees;
}

}  // namespace lockstep
