#include "lockstep/comm/engine/sum_plan.h"

#include <algorithm>

#include "lockstep/comm/ordered_sum.h"
#include "lockstep/comm/reduction_tree.h"

namespace lockstep::engine {
namespace {

void append_subtrees(IdRange node, IdRange own, std::vector<IdRange>& found) {
  if (node.hi <= own.lo || own.hi <= node.lo) return;
  if (own.lo <= node.lo && node.hi <= own.hi) {
    found.push_back(node);
    return;
  }
  const int middle = tree_middle(node.lo, node.hi);
  append_subtrees({node.lo, middle}, own, found);
  append_subtrees({middle, node.hi}, own, found);
}

class Finisher {
 public:
  explicit Finisher(SumPlan& plan) : plan_(plan) {}

  // Makes the value of a node that is a union of pieces first..last-1; its number.
  int finish(IdRange node, int first, int last, bool is_root) {
    if (last - first == 1 && !is_root) return first;
    std::vector<int> inputs;
    if (has_shape_of_tree(node, first, last)) {
      for (int piece = first; piece < last; ++piece) inputs.push_back(piece);
    } else {
      const int middle = tree_middle(node.lo, node.hi);
      const int cut = piece_at(middle);
      inputs.push_back(finish({node.lo, middle}, first, cut, false));
      inputs.push_back(finish({middle, node.hi}, cut, last, false));
    }
    plan_.steps.push_back(std::move(inputs));
    return static_cast<int>(plan_.pieces.size() + plan_.steps.size()) - 1;
  }

 private:
  int piece_at(int id) const {
    const auto found = std::ranges::find_if(plan_.pieces, [&](const SumPiece& piece) { return piece.ids.lo >= id; });
    return static_cast<int>(found - plan_.pieces.begin());
  }

  // Whether the node adds its pieces as T(0, last - first) would: then one call of ordered_sum does it.
  bool has_shape_of_tree(IdRange node, int first, int last) const {
    if (last - first == 1) return true;
    const int middle = tree_middle(node.lo, node.hi);
    const int cut = piece_at(middle);
    return cut == tree_middle(first, last) && has_shape_of_tree({node.lo, middle}, first, cut) &&
           has_shape_of_tree({middle, node.hi}, cut, last);
  }

  SumPlan& plan_;
};

}  // namespace

SumPlan plan_sum(int workers, int replicas) {
  SumPlan plan;
  for (int worker = 0; worker < workers; ++worker) {
    plan.first_piece.push_back(static_cast<int>(plan.pieces.size()));
    std::vector<IdRange> subtrees;
    append_subtrees({0, workers * replicas}, {worker * replicas, (worker + 1) * replicas}, subtrees);
    for (const IdRange ids : subtrees) plan.pieces.push_back({worker, ids});
    plan.most_pieces = std::max(plan.most_pieces, static_cast<int>(subtrees.size()));
  }
  const int count = static_cast<int>(plan.pieces.size());
  plan.first_piece.push_back(count);
  Finisher(plan).finish({0, workers * replicas}, 0, count, true);
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
