#include "lockstep/strategy/replica_context.h"

#include <ATen/core/grad_mode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/strategy/collectives.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/default_strategy.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/differentiable.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/leaf_tensors.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/replica_random.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep {
namespace {

bool needs_gradient(const std::vector<ReducibleLeaf>& leaves) {
  if (!at::GradMode::is_enabled()) return false;
  for (const auto& leaf : leaves) {
    const auto* tensor = std::get_if<at::Tensor>(&leaf);
    if (tensor && tensor->defined() && tensor->requires_grad()) return true;
  }
  return false;
}

void require_same_op(const PerReplica<ReduceOp>& ops) {
  for (std::size_t k = 1; k < ops.size(); ++k) {
    if (ops[k] == ops[0]) continue;
    throw InvalidArgument(errors::kDifferentCollective,
                          {.what = "replicas asked for different reductions",
                           .where = "all_reduce",
                           .seen = str(detail::replica_name(0), ": ", to_string(ops[0]), ", ", detail::replica_name(k),
                                       ": ", to_string(ops[k])),
                           .help = "make the same calls in the same order on every replica"});
  }
}

/// Replicas on CPUs and GPUs meet with values in host memory, where the CPUs' are. Each gets its results where it gave its values.
std::vector<ReducibleLeaf> through_host(
    const std::vector<ReducibleLeaf>& values,
    FunctionRef<std::vector<ReducibleLeaf>(const std::vector<ReducibleLeaf>&)> collective) {
  const at::NoGradGuard no_grad;
  const auto moved_to = [](const ReducibleLeaf& leaf, at::Device device) {
    return map_tensors(leaf, [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(device) : tensor; });
  };
  std::vector<ReducibleLeaf> on_host;
  for (const ReducibleLeaf& value : values) on_host.push_back(moved_to(value, at::kCPU));
  std::vector<ReducibleLeaf> results = collective(on_host);
  for (std::size_t i = 0; i < results.size(); ++i) results[i] = moved_to(results[i], device_of(values[i]));
  return results;
}

/// Another GPU's stream on this thread is not part of the meeting.
void require_on_own_gpu(const char* operation, const ReplicaContext& replica, const at::Tensor& value) {
  if (value.defined()) require_own_gpu(operation, replica.device(), value.device());
}

void require_on_own_gpu(const char* operation, const ReplicaContext& replica,
                        const std::vector<ReducibleLeaf>& leaves) {
  for (const auto& leaf : leaves)
    for_each_tensor(leaf, [&](const at::Tensor& tensor) { require_on_own_gpu(operation, replica, tensor); });
}

}  // namespace

ReplicaContext::ReplicaContext(Strategy& strategy, int local_index, int replica_id, at::Device device,
                               std::string device_name)
    : strategy_(&strategy),
      local_index_(local_index),
      replica_id_(replica_id),
      device_(device),
      device_name_(std::move(device_name)) {}

int ReplicaContext::num_replicas_in_sync() const { return strategy_->num_replicas_in_sync(); }

void ReplicaContext::require_current(const char* operation) const {
  const detail::ContextEntry* top = detail::current_context();
  const ReplicaContext* current = top ? top->replica : &default_strategy().replica_context(0);
  if (current == this) return;
  const std::string where = str(operation, " of replica ", replica_id_);
  if (current == nullptr) {
    throw FailedPrecondition(
        errors::kWrongContext,
        {.what = str(operation, " was called outside of replicas: this code runs once for all of them"),
         .where = where,
         .help = "call it inside the function given to strategy.run"});
  }
  if (&current->strategy() == strategy_) {
    throw FailedPrecondition(
        errors::kWrongContext,
        {.what = current->replica_id_ == replica_id_ ? "this is a copy of the ReplicaContext"
                                                     : "this is the ReplicaContext of another replica",
         .where = where,
         .seen = str("the calling thread is replica ", current->replica_id_),
         .help =
             "call get_replica_context() inside the function instead of passing a context in, and keep no more than a "
             "reference: auto& replica = ls::get_replica_context()"});
  }
  if (top == nullptr || top->strategy->is_default()) {
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = str(operation, " was called outside of its strategy's replicas"),
                              .where = where,
                              .help = "call it inside the function given to strategy.run"});
  }
  throw FailedPrecondition(errors::kMixedStrategies,
                           {.what = "this is the ReplicaContext of another strategy",
                            .where = where,
                            .help = "call get_replica_context() for the strategy that is running"});
}

void detail::keep_for_this_replica(const at::Tensor& tensor) { gpu::keep_for_this_stream(tensor); }

void ReplicaContext::meet_and_lead(const Ticket& ticket, FunctionRef<void(const std::vector<const Ticket*>&)> act) {
  const auto name_of = [&](int k) { return detail::replica_name(*strategy_, static_cast<std::size_t>(k)); };
  const auto lead = [&] {
    const int count = seat_ ? seat_->size() : 1;
    std::vector<const Ticket*> tickets;
    for (int k = 0; k < count; ++k) {
      tickets.push_back(seat_ ? static_cast<const Ticket*>(seat_->payload_of(k)) : &ticket);
      if (*tickets.back()->type != *ticket.type) {
        throw InvalidArgument(
            errors::kStructure,
            {.what = "replicas brought different calls or types to one merge_call",
             .where = "merge_call",
             .seen = str(name_of(0), " and ", name_of(k), " gave different functions or arguments of different types"),
             .help = "make the same merge_call on every replica, from the same place in the program"});
      }
    }
    const detail::RunNotes* const notes = seat_ ? detail::current_context()->notes : nullptr;
    local::Seat* const seat = seat_;  // a run inside the merge function takes its own seat and puts this one back
    const detail::ContextGuard cross(*strategy_, nullptr, -1);
    const GeneratorScope no_replica(nullptr);
    act(tickets);
    seat_ = seat;
    if (notes == nullptr) return;
    for (const auto& watcher : notes->watchers) watcher->end_of_merge();
  };
  if (seat_ == nullptr) return lead();
  // What a merge function changes is changed once, also if it throws afterwards.
  const auto k = static_cast<std::size_t>(local_index_);
  for (const auto& watcher : detail::watchers_here()) watcher->require_untouched(k);
  struct Remember {
    ~Remember() {
      for (const auto& watcher : detail::watchers_here()) watcher->remember(k);
    }
    std::size_t k;
  };
  const Remember at_the_end{k};
  seat_->lead("merge_call", &ticket, lead, deadline_of(strategy_->communication()));
}

at::Tensor ReplicaContext::all_reduce(ReduceOp op, const at::Tensor& value, const CommunicationOptions& options,
                                      const std::source_location& where) {
  const detail::CallPlace place(where);
  // The plain case, straight to the meeting: no gradient to record, no operation of the user's to call.
  if (seat_ && strategy_->cross_device_ops().is_one_order() && strategy_->device_kinds_ != DeviceKinds::Mixed &&
      !(at::GradMode::is_enabled() && value.defined() && value.requires_grad())) {
    require_current("all_reduce");
    require_on_own_gpu("all_reduce", *this, value);
    return local::all_reduce(*seat_, detail::StrategyAccess::workers(*strategy_), op, value,
                             detail::StrategyAccess::options_of_call(*strategy_, options));
  }
  return std::get<at::Tensor>(all_reduce_leaves(op, {value}, "tensor", options)[0]);
}

ReplicaContext::Leaves ReplicaContext::all_reduce_leaves(ReduceOp op, Leaves leaves, std::string structure,
                                                         const CommunicationOptions& given) {
  require_current("all_reduce");
  require_op(op, "all_reduce");
  require_on_own_gpu("all_reduce", *this, leaves);
  const CommunicationOptions options = detail::StrategyAccess::options_of_call(*strategy_, given);
  const auto reduce = [this, op, structure = std::move(structure), options](const Leaves& values) -> Leaves {
    if (seat_ == nullptr) {
      Leaves results;
      for (const auto& value : values)
        results.push_back(workers::reduce_leaf(nullptr, op, {value}, "all_reduce", options));
      return results;
    }
    const auto meet = [&](const Leaves& brought) {
      return local::all_reduce(*seat_, detail::StrategyAccess::workers(*strategy_), op, brought, structure, options);
    };
    if (strategy_->cross_device_ops().is_one_order())
      return strategy_->device_kinds_ == DeviceKinds::Mixed ? through_host(values, meet) : meet(values);
    // A user's own operation: brought to the calling thread, leaf by leaf.
    return merge_call(
        [&](Strategy& strategy, const PerReplica<Leaves>& all, const PerReplica<std::string>& structures,
            const PerReplica<ReduceOp>& ops) {
          require_same_op(ops);
          auto parts = strategy.reduce_across(op, {all.begin(), all.end()}, {structures.begin(), structures.end()},
                                              strategy.devices(), options);
          return PerReplica<Leaves>(std::move(parts));
        },
        values, structure, op);
  };
  if (!needs_gradient(leaves)) return reduce(leaves);
  return differentiable_all_reduce(*this, op, std::move(leaves), options, reduce);
}

at::Tensor ReplicaContext::all_gather(const at::Tensor& value, std::int64_t axis, const CommunicationOptions& options,
                                      const std::source_location& where) {
  const detail::CallPlace place(where);
  return std::get<at::Tensor>(all_gather_leaves({value}, axis, "tensor", options)[0]);
}

ReplicaContext::Leaves ReplicaContext::all_gather_leaves(Leaves leaves, std::int64_t axis, std::string structure,
                                                         const CommunicationOptions& given) {
  require_current("all_gather");
  require_on_own_gpu("all_gather", *this, leaves);
  const CommunicationOptions options = detail::StrategyAccess::options_of_call(*strategy_, given);
  const auto gather = [this, axis, structure = std::move(structure), options](
                          const Leaves& values, std::vector<std::int64_t>& begins) -> Leaves {
    const auto meet = [&](const Leaves& brought) {
      return local::all_gather(*seat_, detail::StrategyAccess::workers(*strategy_), brought, axis, structure, begins,
                               deadline_of(options));
    };
    if (seat_ != nullptr)
      return strategy_->device_kinds_ == DeviceKinds::Mixed ? through_host(values, meet) : meet(values);
    begins.assign(values.size(), 0);
    return strategy_->gather_across({values}, {structure}, axis);
  };
  std::vector<std::int64_t> unused;
  if (!needs_gradient(leaves)) return gather(leaves, unused);
  return differentiable_all_gather(*this, std::move(leaves), axis, options, gather);
}

}  // namespace lockstep
