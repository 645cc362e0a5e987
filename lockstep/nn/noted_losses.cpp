#include "lockstep/nn/noted_losses.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/strategy/context.h"
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

/// A node of the graph, not owned: what the user has dropped is gone.
struct NotedLoss {
  WeakOf<NodePtr>::type node;
  LossNote note;
};
thread_local std::vector<NotedLoss> noted_losses;

RunNotes* notes_here() {
  const ContextEntry* const top = current_context();
  return top == nullptr ? nullptr : top->notes;
}

/// Calls `see` for those of this run that are still there.
template <class F>
void for_each_noted(LossNote note, const F& see) {
  const RunNotes* const run = notes_here();
  if (run == nullptr || run->noted_losses == 0) return;
  for (const NotedLoss& each : noted_losses) {
    if (each.note != note) continue;
    if (NodePtr node = each.node.lock()) see(std::move(node));
  }
}

}  // namespace

void note_loss(const at::Tensor& loss, LossNote note) {
  RunNotes* const run = notes_here();
  if (run == nullptr || !loss.requires_grad()) return;
  if (run->noted_losses++ == 0) noted_losses.clear();
  noted_losses.push_back({loss.grad_fn(), note});
}

namespace {

bool adds_up(const Node& node) {
  const std::string name = node.name();
  return std::ranges::any_of(std::array{"Add", "Sub", "Neg", "Sum", "Mean"},
                             [&](std::string_view kind) { return name.starts_with(kind); });
}

/// `follows`: whether the search goes on at what a node was computed from.
template <class F>
bool is_found(const at::Tensor& loss, LossNote note, const F& follows) {
  std::vector<NodePtr> nodes;
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
  for_each_noted(note, [&](NodePtr node) {
    first = std::min(first, node->sequence_nr());
    nodes.push_back(std::move(node));
  });
  if (nodes.empty()) return false;
  // Nodes are numbered as they are made: what is older than all of these was not computed from them.
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> to_see;
  const auto see_later = [&](const Node* node) {
    if (node != nullptr && node->sequence_nr() >= first && seen.insert(node).second) to_see.push_back(node);
  };
  see_later(loss.grad_fn().get());
  while (!to_see.empty()) {
    const Node* const node = to_see.back();
    to_see.pop_back();
    if (std::ranges::any_of(nodes, [&](const NodePtr& each) { return each.get() == node; })) return true;
    if (!follows(*node)) continue;
    for (const auto& edge : node->next_edges()) see_later(edge.function.get());
  }
  return false;
}

}  // namespace

bool is_noted(const at::Tensor& loss, LossNote note) { return is_found(loss, note, adds_up); }

bool holds_noted(const at::Tensor& loss, LossNote note) {
  return is_found(loss, note, [](const Node&) { return true; });
}

}  // namespace lockstep::detail
