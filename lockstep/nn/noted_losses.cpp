#include "lockstep/nn/noted_losses.h"

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/nn/loss_graph.h"
#include "lockstep/strategy/detail/run_notes.h"

namespace lockstep::detail {
namespace {

using torch::autograd::Node;

// How LibTorch counts the owners of a graph's nodes depends on its version.
template <class Pointer>
struct WeakOf;
template <class T>
struct WeakOf<std::shared_ptr<T>> : std::type_identity<std::weak_ptr<T>> {};
template <class T, class Null>
struct WeakOf<c10::intrusive_ptr<T, Null>> : std::type_identity<c10::weak_intrusive_ptr<T, Null>> {};

using NodePtr = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

}  // namespace

/// Calls of note_loss in a replica's part of a run (run_local).
struct LossesNoted {
  std::int64_t count = 0;
};

namespace {

/// A node of the graph, not owned: what the user has dropped is gone.
struct NotedLoss {
  WeakOf<NodePtr>::type node;
  LossNotes notes = {};
};
thread_local std::vector<NotedLoss> noted_losses;

/// Calls `see` for those of this run that are still there.
template <class F>
void for_each_noted(LossNote note, const F& see) {
  const LossesNoted* const noted = run_local<LossesNoted>();
  if (noted == nullptr || noted->count == 0) return;
  for (const NotedLoss& each : noted_losses) {
    if (!each.notes.has(note)) continue;
    if (NodePtr node = each.node.lock()) see(std::move(node));
  }
}

}  // namespace

void note_loss(const at::Tensor& loss, LossNote note) {
  LossesNoted* const noted = run_local<LossesNoted>();
  if (noted == nullptr || !loss.requires_grad()) return;
  if (noted->count++ == 0) noted_losses.clear();
  if (noted_losses.empty() || noted_losses.back().node.lock() != loss.grad_fn())
    noted_losses.push_back({loss.grad_fn()});
  noted_losses.back().notes.add(note);
}

LossNotes notes_of(const at::Tensor& loss) {
  const LossesNoted* const noted = run_local<LossesNoted>();
  const NodePtr node = loss.grad_fn();
  if (noted == nullptr || noted->count == 0 || !node) return {};
  const auto is_of_loss = [&](const NotedLoss& each) { return each.node.lock() == node; };
  const auto found = std::find_if(noted_losses.rbegin(), noted_losses.rend(), is_of_loss);
  return found == noted_losses.rend() ? LossNotes() : found->notes;
}

namespace {

/// `follows`: whether the search goes on at what a node was computed from.
template <class F>
bool is_found(const Node* last, LossNote note, const F& follows) {
  std::vector<NodePtr> nodes;
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
  for_each_noted(note, [&](NodePtr node) {
    first = std::min(first, node->sequence_nr());
    nodes.push_back(std::move(node));
  });
  if (nodes.empty()) return false;
  const auto is_noted = [&](const Node& node) {
    return std::ranges::any_of(nodes, [&](const NodePtr& each) { return each.get() == &node; });
  };
  // Nodes are numbered as they are made: what is older than all of these was not computed from them.
  return any_node(last, is_noted, [&](const Node& node) { return node.sequence_nr() >= first && follows(node); });
}

}  // namespace

bool is_noted(const at::Tensor& loss, LossNote note) {
  return is_found(loss.grad_fn().get(), note, [](const Node& node) {
    return is_one_of(node, {"Add", "Sub", "Neg", "Sum", "Mean"});
  });
}

bool holds_noted(const at::Tensor& loss, LossNote note) {
  const NodePtr node = loss.grad_fn();
  return node && holds_noted(*node, note);
}

bool holds_noted(const Node& node, LossNote note) {
  return is_found(&node, note, [](const Node&) { return true; });
}

}  // namespace lockstep::detail
