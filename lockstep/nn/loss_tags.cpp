#include "lockstep/nn/loss_tags.h"

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

// LibTorch versions count the owners of a graph's nodes differently.
template <class Pointer>
struct WeakOf;
template <class T>
struct WeakOf<std::shared_ptr<T>> : std::type_identity<std::weak_ptr<T>> {};
template <class T, class Null>
struct WeakOf<c10::intrusive_ptr<T, Null>> : std::type_identity<c10::weak_intrusive_ptr<T, Null>> {};

using NodePtr = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

}  // namespace

/// Calls of tag_loss in a replica's part of a run (run_local).
struct TagsOfRun {
  std::int64_t count = 0;
};

namespace {

/// A node of the graph, not owned: a tensor dropped by the user is gone.
struct TaggedLoss {
  WeakOf<NodePtr>::type node;
  LossTags tags = {};
};
thread_local std::vector<TaggedLoss> tagged_losses;

/// Calls `see` for the nodes of this run that still exist.
template <class F>
void for_each_tagged(LossTag tag, const F& see) {
  const TagsOfRun* const of_run = run_local<TagsOfRun>();
  if (of_run == nullptr || of_run->count == 0) return;
  for (const TaggedLoss& each : tagged_losses) {
    if (!each.tags.has(tag)) continue;
    if (NodePtr node = each.node.lock()) see(std::move(node));
  }
}

}  // namespace

void tag_loss(const at::Tensor& loss, LossTag tag) {
  TagsOfRun* const of_run = run_local<TagsOfRun>();
  if (of_run == nullptr || !loss.requires_grad()) return;
  if (of_run->count++ == 0) tagged_losses.clear();
  if (tagged_losses.empty() || tagged_losses.back().node.lock() != loss.grad_fn())
    tagged_losses.push_back({loss.grad_fn()});
  tagged_losses.back().tags.add(tag);
}

LossTags tags_of(const at::Tensor& loss) {
  const TagsOfRun* const of_run = run_local<TagsOfRun>();
  const NodePtr node = loss.grad_fn();
  if (of_run == nullptr || of_run->count == 0 || !node) return {};
  const auto is_of_loss = [&](const TaggedLoss& each) { return each.node.lock() == node; };
  const auto found = std::find_if(tagged_losses.rbegin(), tagged_losses.rend(), is_of_loss);
  return found == tagged_losses.rend() ? LossTags() : found->tags;
}

namespace {

/// `follows`: whether the search descends to a node's inputs.
template <class F>
bool is_found(const Node* last, LossTag tag, const F& follows) {
  std::vector<NodePtr> nodes;
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
  for_each_tagged(tag, [&](NodePtr node) {
    first = std::min(first, node->sequence_nr());
    nodes.push_back(std::move(node));
  });
  if (nodes.empty()) return false;
  const auto is_tagged = [&](const Node& node) {
    return std::ranges::any_of(nodes, [&](const NodePtr& each) { return each.get() == &node; });
  };
  // Nodes are numbered in order of creation: older ones were not computed from these.
  return any_node(last, is_tagged, [&](const Node& node) { return node.sequence_nr() >= first && follows(node); });
}

}  // namespace

bool is_tagged(const at::Tensor& loss, LossTag tag) {
  return is_found(loss.grad_fn().get(), tag, [](const Node& node) {
    return is_one_of(node, {"Add", "Sub", "Neg", "Sum", "Mean"});
  });
}

bool contains_tagged(const at::Tensor& loss, LossTag tag) {
  const NodePtr node = loss.grad_fn();
  return node && contains_tagged(*node, tag);
}

bool contains_tagged(const Node& node, LossTag tag) {
  return is_found(&node, tag, [](const Node&) { return true; });
}

}  // namespace lockstep::detail
