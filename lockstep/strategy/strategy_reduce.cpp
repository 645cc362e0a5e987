#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/detail/one_thread.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/fail_together.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/worker_collectives.h"

// reduce and gather outside of run: from the components of a value to one result.
namespace lockstep {
namespace {

void require_equal_structures(const Strategy& strategy, const std::vector<std::vector<ReducibleLeaf>>& components,
                              const std::vector<std::string>& structures, const char* operation) {
  if (components.empty()) {
    throw InvalidArgument(errors::kComponent, {.what = "a distributed value must have at least one component, got 0",
                                               .where = operation,
                                               .help = "pass what run or values_from_function returned"});
  }
  const auto replicas = static_cast<std::size_t>(strategy.num_local_replicas());
  if (strategy.num_workers() > 1 && components.size() != replicas)
    detail::throw_component_count(operation, 0, "PerReplica", components.size(), replicas);
  for (std::size_t k = 1; k < components.size(); ++k) {
    if (structures[k] == structures[0] && components[k].size() == components[0].size()) continue;
    throw InvalidArgument(errors::kStructure, {.what = "the replicas' values have different structures",
                                               .where = operation,
                                               .seen = str(detail::replica_name(strategy, 0), ": ", structures[0], ", ",
                                                           detail::replica_name(strategy, k), ": ", structures[k]),
                                               .help = "return the same structure on every replica"});
  }
}

[[noreturn]] void throw_not_reducible(const std::string& what, const std::string& help) {
  throw InvalidArgument(errors::kNotReducible, {.what = what, .where = "reduce", .help = help});
}

}  // namespace

const std::vector<at::Tensor>& Strategy::components_of(const Variable& variable, const char* operation) const {
  if (variable.is_distributed()) extended_->require_own(variable, operation);
  return variable.values();
}

at::Tensor Strategy::reduce_variable(ReduceOp op, const Variable& variable, const Axis& axis) {
  const std::vector<at::Tensor>& components = components_of(variable, "reduce");
  const bool differs = variable.synchronization() == Synchronization::OnRead;
  return differs ? reduce(op, PerReplica<at::Tensor>(components), axis)
                 : reduce(op, Mirrored<at::Tensor>(components), axis);
}

at::Tensor Strategy::gather_variable(const Variable& variable, std::int64_t axis) {
  return gather(PerReplica<at::Tensor>(components_of(variable, "gather")), axis);
}

PerReplica<at::Tensor> detail::ComponentsOfVariables::operator()(const Variable& variable) const {
  return PerReplica<at::Tensor>(variable.values());
}

const Variable& detail::one_variable(const Variable* first, std::size_t count, const char* operation) {
  if (count == 0) require_equal_structures(get_strategy(), {}, {}, operation);
  for (std::size_t k = 1; k < count; ++k) {
    if (first[k].is_same(*first)) continue;
    throw InvalidArgument(
        errors::kStructure,
        {.what = "replicas gave different variables",
         .where = operation,
         .seen = str(replica_name(0), ": '", first->name(), "', ", replica_name(k), ": '", first[k].name(), "'"),
         .help = "give the same variable on every replica, or the tensors: variable.read()"});
  }
  return *first;
}

std::vector<Strategy::Leaves> Strategy::reduce_across(ReduceOp op, const std::vector<Leaves>& components,
                                                      const std::vector<std::string>& structures,
                                                      const Devices& destinations,
                                                      const CommunicationOptions& options) {
  require_op(op, "reduce");
  require_equal_structures(*this, components, structures, "reduce");
  const std::size_t leaf_count = components[0].size();
  std::vector<Leaves> results(destinations.size(), Leaves(leaf_count));
  std::vector<CrossDeviceOps::Job> dense;
  std::vector<std::size_t> dense_index;
  for (std::size_t i = 0; i < leaf_count; ++i) {
    std::size_t sparse = 0;
    for (const auto& component : components) sparse += std::holds_alternative<IndexedSlices>(component[i]) ? 1 : 0;
    if (sparse == components.size()) {
      auto rows = PerReplica<IndexedSlices>::generate(
          components.size(), [&](std::size_t k) { return std::get<IndexedSlices>(components[k][i]); });
      const auto all = cross_device_ops_->reduce_slices(op, rows, destinations, options);
      for (std::size_t d = 0; d < destinations.size(); ++d) results[d][i] = all[d];
      continue;
    }
    // Dense and sparse together are dense.
    auto tensors = PerReplica<at::Tensor>::generate(components.size(), [&](std::size_t k) {
      const auto* tensor = std::get_if<at::Tensor>(&components[k][i]);
      return tensor ? *tensor : std::get<IndexedSlices>(components[k][i]).to_dense();
    });
    require_summable(tensors[0], "reduce");
    require_equal_form(tensors.values(), "reduce");
    dense.emplace_back(std::move(tensors), destinations);
    dense_index.push_back(i);
  }
  const auto reduced = dense.size() == 1
                           ? std::vector{cross_device_ops_->reduce(op, dense[0].first, destinations, options)}
                           : cross_device_ops_->batch_reduce(op, dense, options);
  for (std::size_t j = 0; j < dense.size(); ++j) {
    for (std::size_t d = 0; d < destinations.size(); ++d) results[d][dense_index[j]] = reduced.at(j)[d];
  }
  return results;
}

Strategy::Leaves Strategy::reduce_components(ReduceOp op, const std::vector<Leaves>& components,
                                             const std::vector<std::string>& structures, const Axis& axis) {
  require_op(op, "reduce");
  const detail::OneThread one(detail::collective_thread(*this), "reduce");
  const auto reduce_all = [&]() -> Leaves {
    const Devices here{devices_[0]};
    if (axis.dims().empty()) return std::move(reduce_across(op, components, structures, here, communication_)[0]);

    require_equal_structures(*this, components, structures, "reduce");
    std::optional<detail::CallDetail> along;  // sums along other axes may have the same shape
    if (workers_) {
      std::string dims;
      for (const std::int64_t dim : axis.dims()) dims += str(dims.empty() ? "axis " : ", ", dim);
      along.emplace(std::move(dims));
    }
    std::vector<Leaves> sums(components.size());
    std::vector<std::int64_t> elements(components[0].size(), 0);
    for (std::size_t k = 0; k < components.size(); ++k) {
      for (std::size_t i = 0; i < components[k].size(); ++i) {
        const auto* tensor = std::get_if<at::Tensor>(&components[k][i]);
        if (tensor == nullptr)
          throw_not_reducible("sparse rows cannot be reduced along an axis",
                              "reduce without an axis, or call to_dense() first");
        sums[k].emplace_back(sum_along(*tensor, axis, elements[i]));
      }
    }
    Leaves total = std::move(reduce_across(ReduceOp::Sum, sums, structures, here, communication_)[0]);
    if (op == ReduceOp::Mean) {
      if (workers_) {
        for (std::int64_t& count : elements)
          count = workers::sum(*workers_, count, "elements of a mean", deadline_of(communication_));
      }
      for (std::size_t i = 0; i < total.size(); ++i) total[i] = divide_sum(std::get<at::Tensor>(total[i]), elements[i]);
    }
    return total;
  };
  return detail::or_fail_together(*this, "reduce", reduce_all);
}

Strategy::Leaves Strategy::reduce_shared(ReduceOp op, const Leaves& value, bool mirrored) {
  require_op(op, "reduce");
  if (op == ReduceOp::Sum && mirrored) {
    throw_not_reducible("a Mirrored value cannot be reduced with ReduceOp::Sum: it is one value, not one per replica",
                        "use ReduceOp::Mean, or multiply by num_replicas_in_sync() if that is what you mean");
  }
  const detail::OneThread one(detail::collective_thread(*this), "reduce");
  if (workers_ && !mirrored)
    return detail::or_fail_together(*this, "reduce", [&] { return reduce_over_workers(op, value); });
  if (op == ReduceOp::Sum && num_replicas_in_sync_ != 1) {
    throw_not_reducible(
        str("a plain value cannot be reduced with ReduceOp::Sum over ", num_replicas_in_sync_, " replicas"),
        "reduce what run returned (a PerReplica), or use ReduceOp::Mean for a value that is the same on all replicas");
  }
  Leaves result = value;
  // A copy: what a reduction returns is the caller's own, whatever it was made from.
  for (auto& leaf : result) {
    if (auto* tensor = std::get_if<at::Tensor>(&leaf)) *tensor = tensor->clone();
  }
  return result;
}

Strategy::Leaves Strategy::reduce_over_workers(ReduceOp op, const Leaves& value) {
  Leaves results;
  for (const auto& leaf : value) {
    const auto* tensor = std::get_if<at::Tensor>(&leaf);
    if (tensor == nullptr)
      throw_not_reducible("sparse rows that are not distributed cannot be reduced over workers",
                          "reduce what run returned (a PerReplica), or call to_dense() first");
    require_summable(*tensor, "reduce");
    // One value per worker: its first replica's, and nothing of the others.
    std::vector<at::Tensor> components(static_cast<std::size_t>(num_local_replicas_),
                                       tensor->new_zeros(tensor->sizes()));
    components[0] = tensor->detach();
    const at::Tensor sum =
        workers::all_reduce(*workers_, ReduceOp::Sum, components, "reduce of plain values", communication_);
    results.emplace_back(op == ReduceOp::Mean ? divide_sum(sum, num_workers()) : sum);
  }
  return results;
}

Strategy::Leaves Strategy::gather_across(const std::vector<Leaves>& components,
                                         const std::vector<std::string>& structures, std::int64_t axis) {
  const detail::OneThread one(detail::collective_thread(*this), "gather");
  const auto gather_all = [&] {
    require_equal_structures(*this, components, structures, "gather");
    Leaves results;
    for (std::size_t i = 0; i < components[0].size(); ++i) {
      for (const auto& component : components) {
        if (!std::holds_alternative<IndexedSlices>(component[i])) continue;
        throw Unimplemented(errors::kNotAvailable,
                            {.what = "gather does not support IndexedSlices",
                             .where = "gather",
                             .help = "gather values and indices separately, or call to_dense() first"});
      }
      if (components.size() == 1 && !workers_) {
        results.push_back(components[0][i]);
        continue;
      }
      auto tensors = PerReplica<at::Tensor>::generate(
          components.size(), [&](std::size_t k) { return std::get<at::Tensor>(components[k][i]); });
      results.emplace_back(cross_device_ops_->gather(tensors, axis, {devices_[0]}, communication_)[0]);
    }
    return results;
  };
  return detail::or_fail_together(*this, "gather", gather_all);
}

}  // namespace lockstep
