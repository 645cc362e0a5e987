#include "lockstep/comm/engine/sum_plan.h"

#include <algorithm>

#include "lockstep/comm/ordered_sum.h"
#include "lockstep/comm/reduction_tree.h"

namespace lockstep::engine {
namespace {

// Negative until the number of pieces is known, which come first.
int step_number(int step) { return -1 - step; }

// Reduces to a single value, unless it is one already; returns its number.
int as_one(SumPlan& plan, std::vector<int> values) {
  if (values.size() == 1) return values[0];
  plan.steps.push_back(std::move(values));
  return step_number(static_cast<int>(plan.steps.size()) - 1);
}

// The values whose sum, in the order of `ordered_sum`, equals a node's.
std::vector<int> values_of(SumPlan& plan, IdRange node, int replicas) {
  const int worker = node.lo / replicas;
  if (node.hi <= (worker + 1) * replicas) {
    plan.pieces.push_back({worker, node});
    return {static_cast<int>(plan.pieces.size()) - 1};
  }
  const int middle = tree_middle(node.lo, node.hi);
  std::vector<int> left = values_of(plan, {node.lo, middle}, replicas);
  std::vector<int> right = values_of(plan, {middle, node.hi}, replicas);
  const auto size = static_cast<int>(left.size());
  std::vector<int> both(left);
  both.insert(both.end(), right.begin(), right.end());
  // One call sums pieces that match the cuts of T(0, n).
  if (std::ranges::min(both) >= 0 && size == tree_middle(0, static_cast<int>(both.size()))) return both;
  return {as_one(plan, std::move(left)), as_one(plan, std::move(right))};
}

}  // namespace

SumPlan plan_sum(int workers, int replicas) {
  SumPlan plan;
  plan.steps.push_back(values_of(plan, {0, workers * replicas}, replicas));
  for (auto& step : plan.steps)
    for (int& value : step)
      if (value < 0) value = static_cast<int>(plan.pieces.size()) + step_number(value);
  for (int worker = 0; worker <= workers; ++worker) {
    const auto first = std::ranges::lower_bound(plan.pieces, worker, {}, &SumPiece::worker) - plan.pieces.begin();
    if (worker > 0) plan.most_pieces = std::max(plan.most_pieces, static_cast<int>(first) - plan.first_piece.back());
    plan.first_piece.push_back(static_cast<int>(first));
  }
  return plan;
}

void finish_sum(const SumPlan& plan, Dtype dtype, std::vector<const void*> values, std::byte* room, std::size_t stride,
                const std::vector<void*>& outputs, std::size_t elements, std::int64_t divisor) {
  std::vector<const void*> inputs;
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    inputs.clear();
    for (const int value : plan.steps[step]) inputs.push_back(values[value]);
    const bool is_last = step + 1 == plan.steps.size();
    void* const to = room + step * stride;
    ordered_sum(dtype, inputs.data(), static_cast<int>(inputs.size()), is_last ? outputs.data() : &to,
                is_last ? static_cast<int>(outputs.size()) : 1, elements, is_last ? divisor : 1);
    values.push_back(to);
  }
}

std::vector<Shard> shards_of(std::size_t elements, std::span<const std::uint64_t> counts, int workers) {
  constexpr std::size_t kUnit = 64;
  const std::size_t units = (elements + kUnit - 1) / kUnit, parts = static_cast<std::size_t>(workers);
  std::vector<Shard> shards;
  for (std::size_t k = 0, begin = 0; k < parts; ++k) {
    const std::size_t even = (units / parts + (k < units % parts ? 1 : 0)) * kUnit;
    const std::size_t end = std::min(elements, begin + (counts.empty() ? even : counts[k]));
    shards.push_back({begin, end});
    begin = end;
  }
  return shards;
}

}  // namespace lockstep::engine
