#include "lockstep/comm/engine/sum_plan.h"

#include <algorithm>

#include "lockstep/base/text.h"
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

std::vector<IdRange> subtrees_of(int workers, int replicas, int worker) {
  std::vector<IdRange> found;
  append_subtrees({0, workers * replicas}, {worker * replicas, (worker + 1) * replicas}, found);
  return found;
}

SumPlan plan_sum(int workers, int replicas) {
  SumPlan plan;
  for (int worker = 0; worker < workers; ++worker) {
    plan.first_piece.push_back(static_cast<int>(plan.pieces.size()));
    const auto subtrees = subtrees_of(workers, replicas, worker);
    for (const IdRange ids : subtrees) plan.pieces.push_back({worker, ids});
    plan.most_pieces = std::max(plan.most_pieces, static_cast<int>(subtrees.size()));
  }
  const int count = static_cast<int>(plan.pieces.size());
  plan.first_piece.push_back(count);
  Finisher(plan).finish({0, workers * replicas}, 0, count, true);
  return plan;
}

std::string to_string(const SumPlan& plan) {
  std::string text;
  const int workers = static_cast<int>(plan.first_piece.size()) - 1;
  text = counted(workers, "worker") + ": ";
  for (int worker = 0; worker < workers; ++worker) {
    text += str("w", worker);
    for (int k = plan.first_piece[worker]; k < plan.first_piece[worker + 1]; ++k)
      text += str(" [", plan.pieces[k].ids.lo, ",", plan.pieces[k].ids.hi, ")");
    text += "; ";
  }
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    text += str(i == 0 ? "v" : "; v", plan.pieces.size() + i, " = ");
    for (std::size_t k = 0; k < plan.steps[i].size(); ++k) text += str(k == 0 ? "" : "+", plan.steps[i][k]);
  }
  return text;
}

std::vector<Shard> even_shards(std::size_t count, int workers) {
  constexpr std::size_t kUnit = 64;
  const std::size_t units = (count + kUnit - 1) / kUnit;
  const auto parts = static_cast<std::size_t>(workers);
  std::vector<Shard> shards;
  std::size_t begin = 0;
  for (std::size_t k = 0; k < parts; ++k) {
    const std::size_t end = std::min(count, begin + (units / parts + (k < units % parts ? 1 : 0)) * kUnit);
    shards.push_back({begin, end});
    begin = end;
  }
  return shards;
}

std::vector<Shard> shards_of(const std::vector<std::size_t>& counts) {
  std::vector<Shard> shards;
  std::size_t begin = 0;
  for (const std::size_t count : counts) {
    shards.push_back({begin, begin + count});
    begin += count;
  }
  return shards;
}

}  // namespace lockstep::engine
