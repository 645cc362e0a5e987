#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/strategy/detail/hand_over.h"
#include "lockstep/strategy/detail/step_rows.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/values/reducible.h"
#include "lockstep/values/select.h"

// The bodies of strategy.h's templates: values are taken apart for the functions of strategy.cpp, which know no types.
namespace lockstep {

namespace detail {

[[noreturn]] LOCKSTEP_EXPORT void throw_component_count(const char* operation, std::size_t argument, const char* kind,
                                                        std::size_t components, std::size_t wanted);

/// Throws InvalidArgument for a value on other devices than those of all these local replicas.
LOCKSTEP_EXPORT void require_placed(const char* operation, std::size_t argument, const Placement& placement,
                                    const std::vector<int>& replicas);
/// Does nothing to an undefined tensor or one without memory.
LOCKSTEP_EXPORT void bring_to(at::Device device, at::Tensor& tensor);

/// The numbers of so many local replicas.
LOCKSTEP_EXPORT std::vector<int> first_replicas(std::size_t count);

/// Throws InvalidArgument for a distributed value whose components are not those of the replicas.
template <class... Args>
void require_components(int replicas, const Args&... args) {
  [[maybe_unused]] std::size_t argument = 0;
  [[maybe_unused]] const auto wanted = static_cast<std::size_t>(replicas);
  [[maybe_unused]] const auto check = [&](const char* kind, std::size_t components, const Placement* placed = nullptr) {
    if (placed != nullptr) return require_placed("run", argument, *placed, first_replicas(wanted));
    if (components != wanted) throw_component_count("run", argument, kind, components, wanted);
  };
  ((for_each_distributed(args, check), ++argument), ...);
}

/// The same for what is called once for each of these replicas.
template <class... Args>
void require_components_for_update(const char* operation, const std::vector<int>& replicas, const Args&... args) {
  [[maybe_unused]] std::size_t argument = 0;
  [[maybe_unused]] const auto check = [&](const char* kind, std::size_t components, const Placement* placed = nullptr) {
    if (placed != nullptr) return require_placed(operation, argument, *placed, replicas);
    for (const int replica : replicas) {
      const auto wanted = static_cast<std::size_t>(replica) + 1;
      if (components < wanted) throw_component_count(operation, argument, kind, components, wanted);
    }
  };
  ((for_each_distributed(args, check), ++argument), ...);
}

/// What replicas return, or bring to a merge point, as a variable.
template <class T>
inline constexpr bool is_distributed_variable_v =
    std::is_same_v<T, PerReplica<Variable>> || std::is_same_v<T, Mirrored<Variable>>;

/// Finds the rows of a step in what `run` is given: the first dimensions of the first tensor that has one on every
/// replica.
class LOCKSTEP_EXPORT StepRowsFinder {
 public:
  void begin_component() { starts_.push_back(seen_.size()); }
  void see(const at::Tensor& tensor) { seen_.push_back(tensor.defined() && tensor.dim() > 0 ? tensor.size(0) : -1); }
  /// `known`: what the dataset knew of all workers' batches.
  void end_argument(const BatchRows& known);
  /// No rows where a replica could not tell by the number of its losses which of two tensors they belong to.
  StepRows finish();

 private:
  StepRows rows_;
  c10::SmallVector<std::int64_t, 16> seen_;   ///< of the tensors of an argument's components, one after the other
  c10::SmallVector<std::size_t, 16> starts_;  ///< of each component
  bool is_ambiguous_ = false;
};

/// Shows the tensors of a structure to `finder`, and of a torch::data::Example its `data`. Of a list or a map only the
/// first entry is looked at: this is done in every run.
template <class T>
void find_rows([[maybe_unused]] const T& value, [[maybe_unused]] StepRowsFinder& finder) {
  using enum StructureKind;
  constexpr StructureKind kind = kind_v<T>;
  [[maybe_unused]] const auto find_all = [&](const auto&... parts) { (find_rows(parts, finder), ...); };
  if constexpr (std::is_same_v<T, at::Tensor>) {
    finder.see(value);
  } else if constexpr (kind == Tuple) {
    std::apply(find_all, value);
  } else if constexpr (kind == Aggregate) {
    with_fields(value, find_all);
  } else if constexpr (kind == Array || kind == Vector) {
    if constexpr (!std::is_arithmetic_v<typename T::value_type>) {
      if (!value.empty()) find_rows(*value.begin(), finder);
    }
  } else if constexpr (kind == Map || kind == UnorderedMap) {
    if (!value.empty()) find_rows(value.begin()->second, finder);
  } else if constexpr (requires { requires std::is_same_v<std::remove_cvref_t<decltype(value.data)>, at::Tensor>; }) {
    finder.see(value.data);
  }
}

/// The rows of the arguments that are a PerReplica; none if none is.
template <class... Args>
StepRows rows_of_step([[maybe_unused]] const Args&... args) {
  StepRowsFinder finder;
  [[maybe_unused]] const auto look = [&]<class T>(const T& arg) {
    if constexpr (is_per_replica_v<T>) {
      for (const auto& component : arg) {
        finder.begin_component();
        find_rows(component, finder);
      }
      finder.end_argument(arg.batch_rows());
    }
  };
  (look(args), ...);
  return finder.finish();
}

template <class T>
inline constexpr bool is_vector_of_leaves_v = false;
template <class T, class A>
inline constexpr bool is_vector_of_leaves_v<std::vector<T, A>> =
    std::is_arithmetic_v<T> || std::is_same_v<T, at::Tensor>;

/// The leaves of each replica's value, and their structures for comparison.
struct TakenApart {
  std::vector<std::vector<ReducibleLeaf>> leaves;
  std::vector<std::string> structures;

  template <class Components>
  explicit TakenApart(const Components& components) {
    for (const auto& component : components) add(component);
  }
  template <class T>
  void add(const T& component) {
    leaves.push_back(flatten_reducible(component));
    structures.push_back(structure_string(component));
  }
};

}  // namespace detail

template <class F, class... Args>
  requires(!detail::is_signature_v<F>)
auto Strategy::run(F&& f, const Args&... args) {
  detail::require_components(num_local_replicas(), args...);
  if constexpr (!std::is_invocable_v<F&, decltype(select_component(args, 0))...>) {
    static_assert(
        detail::never<F, Args...>,
        "strategy.run(f, args...) cannot call f with these arguments: f gets a `const T&` for each of them, for "
        "a PerReplica<T> or Mirrored<T> the replica's own T (the note about this instantiation has the types)");
    return detail::AfterCompileError();
  } else {
    using Result = std::decay_t<std::invoke_result_t<F&, decltype(select_component(args, 0))...>>;
    const detail::StepRows rows = detail::rows_of_step(args...);
    const auto call = [&]<class... Mine>([[maybe_unused]] std::size_t k, Mine&&... mine) -> decltype(auto) {
      if (device_kinds_ != DeviceKinds::Cpus && k > 0)
        (detail::take_over(mine), ...);  // replica 0 has the caller's stream
      return f(std::forward<Mine>(mine)...);
    };
    if constexpr (std::is_void_v<Result>) {
      run_on_replicas(rows, [&](std::size_t k) { call(k, select_component(args, static_cast<int>(k))...); });
    } else {
      std::vector<std::optional<Result>> results(static_cast<std::size_t>(num_local_replicas()));
      run_on_replicas(
          rows, [&](std::size_t k) { results[k].emplace(call(k, select_component(args, static_cast<int>(k))...)); });
      std::vector<Result> components;
      components.reserve(results.size());
      for (auto& result : results) components.push_back(std::move(*result));
      return as_one_of_all(PerReplica<Result>(std::move(components)));
    }
  }
}

template <class T>
auto Strategy::reduce(ReduceOp op, const T& value, const Axis& axis, const std::source_location& where) {
  detail::require_cross_replica(*this, "reduce");
  const detail::CallPlace place(where);
  if constexpr (std::is_same_v<T, Variable>) {
    return reduce_variable(op, value, axis);
  } else if constexpr (detail::is_distributed_variable_v<T>) {
    return reduce_variable(op, detail::one_variable(value.values().data(), value.size(), "reduce"), axis);
  } else if constexpr (is_distributed_v<T>) {
    if (!detail::is_per_replica_v<T> && axis.dims().empty()) {
      return unflatten_reducible(value[0], reduce_shared(op, flatten_reducible(value[0]), /*mirrored=*/true));
    }
    const detail::TakenApart parts(value);
    // Before value[0], which an empty value does not have: compilers differ in which argument comes first.
    auto reduced = reduce_components(op, parts.leaves, parts.structures, axis);
    return unflatten_reducible(value[0], std::move(reduced));
  } else if constexpr (contains_distributed_v<T> || detail::contains_variable_v<T>) {
    return map_structure([&](const auto& leaf) { return reduce(op, leaf, axis, where); }, value);
  } else {
    if constexpr (std::is_arithmetic_v<T>) {
      if (value == T{} && num_workers() == 1) return value;  // nothing, N times
    }
    if (axis.dims().empty())
      return unflatten_reducible(value, reduce_shared(op, flatten_reducible(value), /*mirrored=*/false));
    const detail::TakenApart parts(std::vector<T>(static_cast<std::size_t>(num_local_replicas()), value));
    return unflatten_reducible(value, reduce_components(op, parts.leaves, parts.structures, axis));
  }
}

template <class T>
auto Strategy::gather(const T& value, std::int64_t axis, const std::source_location& where) {
  detail::require_cross_replica(*this, "gather");
  const detail::CallPlace place(where);
  if constexpr (std::is_same_v<T, Variable>) {
    return gather_variable(value, axis);
  } else if constexpr (detail::is_distributed_variable_v<T>) {
    return gather_variable(detail::one_variable(value.values().data(), value.size(), "gather"), axis);
  } else if constexpr (is_distributed_v<T>) {
    const detail::TakenApart parts(value);
    auto gathered = gather_across(parts.leaves, parts.structures, axis);
    return unflatten_reducible(value[0], std::move(gathered));
  } else if constexpr (contains_distributed_v<T> || detail::contains_variable_v<T>) {
    return map_structure([&](const auto& leaf) { return gather(leaf, axis, where); }, value);
  } else {
    const detail::TakenApart parts(std::vector<T>{value});
    return unflatten_reducible(value, gather_across(parts.leaves, parts.structures, axis));
  }
}

template <class T>
T Strategy::broadcast(const T& value, const std::source_location& where) {
  constexpr auto kPurpose = detail::LeafPurpose::Broadcast;
  if constexpr (!is_structure_v<T>) {
    return unflatten_reducible(value, broadcast_leaves(flatten_reducible(value, kPurpose), nullptr, where), kPurpose);
  } else if constexpr (detail::is_vector_of_leaves_v<T>) {
    T sized = value;
    sized.resize(chiefs_size(value.size(), where));
    return unflatten_reducible(sized, broadcast_leaves(flatten_reducible(sized, kPurpose), nullptr, where), kPurpose);
  } else {
    const std::string structure = structure_string(value);
    return unflatten_reducible(value, broadcast_leaves(flatten_reducible(value, kPurpose), &structure, where),
                               kPurpose);
  }
}

template <class F>
auto Strategy::values_from_function(F&& f) {
  if constexpr (!std::is_invocable_v<F&, const ValueContext&>) {
    static_assert(detail::never<F>, "values_from_function(f) calls f(const lockstep::ValueContext&) for each replica");
    return detail::AfterCompileError();
  } else {
    using Result = std::decay_t<std::invoke_result_t<F&, const ValueContext&>>;
    const auto of = [&](std::size_t k) -> Result {
      const ReplicaContext& replica = replica_context(static_cast<int>(k));
      Result made = f(ValueContext{replica.replica_id_in_sync_group(), num_replicas_in_sync()});
      for_each_leaf(made, [&](auto& leaf) {
        if constexpr (std::is_same_v<decltype(leaf), at::Tensor&>) detail::bring_to(replica.device(), leaf);
      });
      return made;
    };
    return as_one_of_all(PerReplica<Result>::generate(static_cast<std::size_t>(num_local_replicas()), of));
  }
}

}  // namespace lockstep
