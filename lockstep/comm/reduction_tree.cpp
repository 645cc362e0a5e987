#include "lockstep/comm/reduction_tree.h"

namespace lockstep {
namespace {

void append_steps(int lo, int hi, std::vector<TreeStep>& steps) {
  if (hi - lo < 2) return;
  const int mid = tree_middle(lo, hi);
  append_steps(lo, mid, steps);
  append_steps(mid, hi, steps);
  steps.push_back({.into = lo, .from = mid});
}

}  // namespace

std::vector<TreeStep> plan_reduction_tree(int count) {
  std::vector<TreeStep> steps;
  append_steps(0, count, steps);
  return steps;
}

}  // namespace lockstep
