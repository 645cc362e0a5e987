#include "tests/golden/reference.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/sum.h>

#include <functional>

#include "lockstep/comm/reduction_tree.h"
#include "tests/golden/json_value.h"
#include "tests/golden/typed.h"

namespace lockstep::golden {
namespace {

at::Tensor tree_sum(const std::vector<at::Tensor>& components, int lo, int hi) {
  if (hi - lo == 1) return components[static_cast<std::size_t>(lo)];
  const int middle = tree_middle(lo, hi);
  return tree_sum(components, lo, middle) + tree_sum(components, middle, hi);
}

at::Tensor quotient(const at::Tensor& sum, std::int64_t count) {
  if (sum.is_floating_point()) return sum / static_cast<double>(count);
  const bool wide = sum.scalar_type() == at::kInt || sum.scalar_type() == at::kLong;
  return sum.to(wide ? at::kDouble : at::kFloat) / static_cast<double>(count);
}

at::Tensor reduced_tensors(ReduceOp op, const std::vector<at::Tensor>& components) {
  const at::Tensor sum = tree_sum(components, 0, static_cast<int>(components.size()));
  return op == ReduceOp::Sum ? sum : quotient(sum, static_cast<std::int64_t>(components.size()));
}

/// A structure like the first one, with `join` of the corresponding leaves in place of each leaf.
Nest join_leaves(const std::vector<Nest>& nests, const std::function<Nest(const std::vector<Nest>&)>& join) {
  if (!nests.at(0).is_container()) return join(nests);
  Nest::Container joined = value_as<Nest::Container>(nests[0]);
  for (std::size_t i = 0; i < joined.items.size(); ++i) {
    std::vector<Nest> leaves;
    for (const Nest& nest : nests) leaves.push_back(nest.items().at(i));
    joined.items[i] = join_leaves(leaves, join);
  }
  return joined;
}

Nest reduced_leaves(ReduceOp op, const std::vector<Nest>& leaves) {
  if (all_are<at::Tensor>(leaves)) return reduced_tensors(op, each_as<at::Tensor>(leaves));
  const auto count = static_cast<std::int64_t>(leaves.size());
  if (all_are<IndexedSlices>(leaves)) {
    std::vector<at::Tensor> values, indices;
    for (const auto& slices : each_as<IndexedSlices>(leaves)) {
      values.push_back(slices.values);
      indices.push_back(slices.indices);
    }
    const at::Tensor rows = at::cat(values);
    return IndexedSlices{.values = op == ReduceOp::Sum ? rows : quotient(rows, count),
                         .indices = at::cat(indices),
                         .dense_shape = value_as<IndexedSlices>(leaves[0]).dense_shape};
  }
  // The same number on every replica is one number per replica.
  const std::int64_t factor = op == ReduceOp::Sum ? count : 1;
  if (all_are<double>(leaves)) return value_as<double>(leaves[0]) * static_cast<double>(factor);
  return value_as<std::int64_t>(leaves[0]) * factor;
}

}  // namespace

Nest reduced(ReduceOp op, const std::vector<Nest>& components) {
  return join_leaves(components, [op](const std::vector<Nest>& leaves) { return reduced_leaves(op, leaves); });
}

Nest reduced_along(ReduceOp op, const std::vector<Nest>& components, const std::vector<std::int64_t>& axes) {
  return join_leaves(components, [&](const std::vector<Nest>& leaves) -> Nest {
    std::vector<at::Tensor> sums;
    std::int64_t elements = 0;
    for (const auto& tensor : each_as<at::Tensor>(leaves)) {
      sums.push_back(at::sum(tensor, at::IntArrayRef(axes), /*keepdim=*/false, tensor.scalar_type()));
      std::int64_t elements_of_one = 1;
      for (const std::int64_t axis : axes) elements_of_one *= tensor.size(axis);
      elements += elements_of_one;
    }
    const at::Tensor sum = reduced_tensors(ReduceOp::Sum, sums);
    return op == ReduceOp::Sum ? sum : quotient(sum, elements);
  });
}

Nest gathered(const std::vector<Nest>& components, std::int64_t axis) {
  return join_leaves(
      components, [&](const std::vector<Nest>& leaves) -> Nest { return at::cat(each_as<at::Tensor>(leaves), axis); });
}

}  // namespace lockstep::golden
