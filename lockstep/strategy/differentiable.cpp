#include "lockstep/strategy/differentiable.h"

#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/replica_context.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What both directions need, kept alive by the autograd graph.
struct RecordedCollective : torch::CustomClassHolder {
  explicit RecordedCollective(ReplicaContext& caller)
      : replica(&caller), strategy(detail::StrategyAccess::alive(caller.strategy())) {}

  /// The replica whose graph this is; the graph may be kept longer than its strategy.
  ReplicaContext& current_replica() const {
    if (!strategy.expired()) return *replica;
    throw FailedPrecondition(errors::kMixedStrategies,
                             {.what = "backward goes through a collective that has outlived its strategy",
                              .where = "backward",
                              .help = "call backward inside the function given to run, while the strategy lives"});
  }

  ReplicaContext* replica;
  std::weak_ptr<Strategy*> strategy;
  ReduceOp op = ReduceOp::Sum;
  std::int64_t axis = 0;
  CommunicationOptions options;
  LeafCollective forward;
  std::vector<std::int64_t> begins;  ///< all_gather: where this replica's part begins, per leaf; otherwise empty
  std::vector<std::int64_t> lengths;
};

variable_list as_tensors(std::vector<ReducibleLeaf> leaves) {
  variable_list tensors;
  for (auto& leaf : leaves) tensors.push_back(std::move(std::get<at::Tensor>(leaf)));
  return tensors;
}

std::vector<ReducibleLeaf> as_leaves(const variable_list& tensors) { return {tensors.begin(), tensors.end()}; }

/// A collective as autograd sees it. Backward reduces the gradients of all replicas; for a gathered value each replica then takes
/// its own part.
template <class Self>
struct Differentiable : torch::autograd::Function<Self> {
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<RecordedCollective>& collective,
                               at::TensorList values) {
    context->saved_data["collective"] = c10::IValue::make_capsule(collective);
    return as_tensors(collective->forward(as_leaves(values.vec())));
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto collective =
        c10::static_intrusive_pointer_cast<RecordedCollective>(context->saved_data["collective"].toCapsule());
    variable_list result{at::Tensor()};
    const variable_list reduced =
        collective->current_replica().all_reduce(collective->op, gradients, collective->options);
    for (std::size_t i = 0; i < reduced.size(); ++i) {
      const bool is_whole = collective->begins.empty();
      result.push_back(is_whole ? reduced[i]
                                : reduced[i].narrow(collective->axis, collective->begins[i], collective->lengths[i]));
    }
    return result;
  }
};

struct AllReduce : Differentiable<AllReduce> {};
struct AllGather : Differentiable<AllGather> {};

/// Splits off what has no gradient (sparse rows), applies `Function` to the tensors and puts the leaves together again.
template <class Function>
std::vector<ReducibleLeaf> apply(const c10::intrusive_ptr<RecordedCollective>& collective,
                                 std::vector<ReducibleLeaf> leaves) {
  variable_list tensors;
  for (const auto& leaf : leaves) {
    if (const auto* tensor = std::get_if<at::Tensor>(&leaf)) tensors.push_back(*tensor);
  }
  std::vector<ReducibleLeaf> sparse_results;
  if (tensors.size() != leaves.size()) {
    // One meeting for all leaves, in forward; autograd sees only the tensors.
    const LeafCollective whole = collective->forward;
    collective->forward = [&, whole](const std::vector<ReducibleLeaf>& dense) {
      std::size_t next = 0;
      for (auto& leaf : leaves) {
        if (std::holds_alternative<at::Tensor>(leaf)) leaf = dense[next++];
      }
      std::vector<ReducibleLeaf> dense_results;
      for (auto& result : whole(leaves)) {
        (std::holds_alternative<at::Tensor>(result) ? dense_results : sparse_results).push_back(std::move(result));
      }
      return dense_results;
    };
  }
  const variable_list results = Function::apply(collective, at::TensorList(tensors));
  collective->forward = nullptr;
  std::vector<ReducibleLeaf> combined;
  std::size_t next_dense = 0;
  std::size_t next_sparse = 0;
  for (const auto& leaf : leaves) {
    if (std::holds_alternative<at::Tensor>(leaf)) {
      combined.emplace_back(results[next_dense++]);
    } else {
      combined.push_back(std::move(sparse_results[next_sparse++]));
    }
  }
  return combined;
}

}  // namespace

std::vector<ReducibleLeaf> differentiable_all_reduce(ReplicaContext& replica, ReduceOp op,
                                                     std::vector<ReducibleLeaf> leaves,
                                                     const CommunicationOptions& options,
                                                     const LeafCollective& reduce) {
  auto collective = c10::make_intrusive<RecordedCollective>(replica);
  collective->op = op;
  collective->options = options;
  collective->forward = reduce;
  return apply<AllReduce>(collective, std::move(leaves));
}

bool is_from_all_reduce(const at::Tensor& result) {
  return dynamic_cast<const torch::autograd::CppNode<AllReduce>*>(result.grad_fn().get()) != nullptr;
}

std::vector<ReducibleLeaf> differentiable_all_gather(ReplicaContext& replica, std::vector<ReducibleLeaf> leaves,
                                                     std::int64_t axis, const CommunicationOptions& options,
                                                     const LeafGather& gather) {
  auto collective = c10::make_intrusive<RecordedCollective>(replica);
  collective->axis = axis;
  collective->options = options;
  collective->forward = [&](const std::vector<ReducibleLeaf>& values) {
    auto results = gather(values, collective->begins);
    for (const auto& value : values) collective->lengths.push_back(std::get<at::Tensor>(value).size(axis));
    return results;
  };
  return apply<AllGather>(collective, std::move(leaves));
}

}  // namespace lockstep
