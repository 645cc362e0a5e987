#pragma once

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace lockstep::detail {

/// Whether `matches` holds for `last`, or for a node it was computed from, descending only through nodes for which
/// `follows` is true. Visits each node once, however many paths lead to it.
template <class Matches, class Follows>
bool any_node(const torch::autograd::Node* last, const Matches& matches, const Follows& follows) {
  if (last == nullptr) return false;
  if (!follows(*last)) return matches(*last);  // the usual case, without allocation
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> to_see;
  const auto see_later = [&](const torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) to_see.push_back(node);
  };
  see_later(last);
  while (!to_see.empty()) {
    const torch::autograd::Node& node = *to_see.back();
    to_see.pop_back();
    if (matches(node)) return true;
    if (!follows(node)) continue;
    for (const auto& edge : node.next_edges()) see_later(edge.function.get());
  }
  return false;
}

/// LibTorch's names of nodes: "AddBackward0" is an "Add", "AddmmBackward0" is not.
inline bool is_one_of(const torch::autograd::Node& node, std::initializer_list<std::string_view> operations) {
  const std::string name = node.name();
  return std::ranges::any_of(operations, [&](std::string_view operation) {
    return name.starts_with(operation) && name.compare(operation.size(), 8, "Backward") == 0;
  });
}

}  // namespace lockstep::detail
