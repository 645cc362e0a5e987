#pragma once

#include <c10/core/GradMode.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/strategy/strategy.h"

namespace lockstep {

/// The lower-level half of a strategy: `strategy.extended()`. For libraries and optimizers; most programs need only
/// `run` and `reduce`.
class LOCKSTEP_EXPORT StrategyExtended {
 public:
  explicit StrategyExtended(Strategy& strategy);
  ~StrategyExtended();

  /// The same as `strategy.run`.
  template <class F, class... Args>
  auto call_for_each_replica(F&& f, const Args&... args) {
    return strategy_.run(std::forward<F>(f), args...);
  }

  /// Reduces over replicas and puts the result on each destination device. Of the destinations only the devices count.
  Mirrored<at::Tensor> reduce_to(ReduceOp op, const PerReplica<at::Tensor>& value, const Destinations& destinations,
                                 const CommunicationOptions& options = {});
  Mirrored<at::Tensor> reduce_to(ReduceOp op, const Mirrored<at::Tensor>& value, const Destinations& destinations,
                                 const CommunicationOptions& options = {});
  Mirrored<at::Tensor> reduce_to(ReduceOp op, const at::Tensor& value, const Destinations& destinations,
                                 const CommunicationOptions& options = {});
  Mirrored<at::Tensor> reduce_to(ReduceOp op, const Variable& value, const Destinations& destinations,
                                 const CommunicationOptions& options = {});
  Mirrored<IndexedSlices> reduce_to(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                    const Destinations& destinations, const CommunicationOptions& options = {});

  /// What several reductions take, each as `reduce_to` does.
  class LOCKSTEP_EXPORT ReduceValue {
   public:
    // NOLINTBEGIN(google-explicit-constructor)
    ReduceValue(PerReplica<at::Tensor> value);
    ReduceValue(Mirrored<at::Tensor> value);
    ReduceValue(const Variable& variable);
    // NOLINTEND(google-explicit-constructor)

   private:
    friend class StrategyExtended;
    std::vector<at::Tensor> components_;
    bool is_mirrored_ = false;
    std::shared_ptr<const Placement> placement_;
    std::optional<Variable> variable_;
  };

  /// Several reductions at once, packed where that helps; results in the order of the pairs.
  using ReducePair = std::pair<ReduceValue, Destinations>;
  /// Reduces each value to its devices.
  std::vector<Mirrored<at::Tensor>> batch_reduce_to(ReduceOp op, const std::vector<ReducePair>& pairs,
                                                    const CommunicationOptions& options = {});
  std::vector<Mirrored<at::Tensor>> batch_reduce_to(ReduceOp op, std::initializer_list<ReducePair> pairs,
                                                    const CommunicationOptions& options = {});
  /// The same for sparse rows: each value as `reduce_to` reduces it.
  using SparseReducePair = std::pair<PerReplica<IndexedSlices>, Destinations>;
  std::vector<Mirrored<IndexedSlices>> batch_reduce_to(ReduceOp op, const std::vector<SparseReducePair>& pairs,
                                                       const CommunicationOptions& options = {});

  /// One copy per destination device.
  Mirrored<at::Tensor> broadcast_to(const at::Tensor& tensor, const Destinations& destinations);
  Mirrored<IndexedSlices> broadcast_to(const IndexedSlices& rows, const Destinations& destinations);
  /// A number has no device: it comes back as it is.
  c10::Scalar broadcast_to(const c10::Scalar& number, const Destinations& destinations);

  /// Calls `f(component, args...)` for each local component of `variable`, in order, in update context k; distributed
  /// arguments arrive as their component k. In replica context the replicas' arguments are merged first, and `f` is
  /// still called once per component.
  ///
  ///     auto add = [](torch::Tensor w, const torch::Tensor& delta) { return w.add_(delta); };
  ///     strategy.extended().update(weight, add, delta);
  template <class F, class... Args>
  auto update(const Variable& variable, F&& f, const Args&... args);

  /// Like `update`, for state that belongs to no variable: calls `f(args...)` once per device, which is one of a local
  /// replica. Distributed arguments arrive as their component on that device.
  template <class F, class... Args>
  auto update_non_slot(const Devices& colocate_with, F&& f, const Args&... args);
  /// The devices for state that belongs to no variable: all local replicas'.
  Devices non_slot_devices(const std::vector<Variable>& variables) const;

  /// The variable's value in the current context, as `variable.read()`.
  at::Tensor read_var(const Variable& variable) const { return variable.read(); }

  /// The variable that `component` is a component of, if it is one of this strategy's.
  std::optional<Variable> value_container(const at::Tensor& component) const;
  bool variable_created_in_scope(const Variable& variable) const;

  /// Variables created while the result lives are placed on the devices of `variable`.
  class [[nodiscard]] ColocateScope;
  /// Places variables on the devices of `variable` until the result is destroyed.
  ColocateScope colocate_vars_with(const Variable& variable);

  /// Does nothing: the updates have happened when their values exist. For programs that group their updates.
  template <class... Values>
  void group(const Values&...) const {}

  /// The devices of variables; those of replicas.
  const Devices& parameter_devices() const;
  const Devices& worker_devices() const;
  /// Whether every worker runs the program for its own replicas: true of MultiWorkerMirroredStrategy, even of one worker.
  bool experimental_between_graph() const;
  bool experimental_require_static_shapes() const { return false; }
  bool experimental_should_init() const { return true; }
  /// The chief's files are the ones to keep. Saving itself stays a call that all workers make.
  bool should_checkpoint() const { return strategy_.is_chief(); }
  bool should_save_summary() const { return strategy_.is_chief(); }

 private:
  friend class Strategy;
  friend struct detail::StrategyAccess;
  friend class Variable;
  void require_own(const Variable& variable, const char* operation) const;
  /// The local replicas that have these devices; InvalidArgument if one has none or is named twice.
  std::vector<int> replicas_on(const Devices& devices) const;
  /// The value, which is on these devices, and knows it.
  template <class T>
  Mirrored<T> placed(Mirrored<T> value, Devices devices) const {
    if (devices != strategy_.devices()) value.set_placement(place_on(std::move(devices), strategy_.devices()));
    return value;
  }
  static void require_one_variable(const PerReplica<Variable>& variables);
  void refuse_divergence(const char* operation) const;
  int remember(const Variable& variable);  ///< and numbers it, from 1 on
  bool has_made_variables() const;

  template <class F, class... Args>
  auto update_components(const Variable& variable, F& f, const Args&... args);

  /// Calls `f(k)` for each of these replicas in update context k and mirrors the results.
  template <class F>
  auto update_each(const std::vector<int>& replicas, F&& f);

  class Containers;  ///< which variable a component belongs to

  Strategy& strategy_;
  std::unique_ptr<Containers> containers_;
};

/// Ends what `colocate_vars_with` began when it is destroyed.
class LOCKSTEP_EXPORT StrategyExtended::ColocateScope {
 public:
  explicit ColocateScope(const Variable& variable);
  ~ColocateScope();
  ColocateScope(const ColocateScope&) = delete;
  ColocateScope& operator=(const ColocateScope&) = delete;

 private:
  Variable variable_;
  const Variable* outer_;
};

template <class F>
auto StrategyExtended::update_each(const std::vector<int>& replicas, F&& f) {
  using Result = std::decay_t<std::invoke_result_t<F&, int>>;
  const auto call = [&](int k) -> Result {
    detail::ContextGuard update(strategy_, nullptr, k);
    const c10::AutoGradMode no_grad(false);
    return f(k);
  };
  if constexpr (std::is_void_v<Result>) {
    for (const int k : replicas) call(k);
  } else {
    return Mirrored<Result>::generate(replicas.size(), [&](std::size_t i) -> Result { return call(replicas[i]); });
  }
}

template <class F, class... Args>
auto StrategyExtended::update(const Variable& variable, F&& f, const Args&... args) {
  if constexpr (!std::is_invocable_v<F&, at::Tensor, decltype(select_component(args, 0))...>) {
    static_assert(detail::never<F, Args...>,
                  "update(variable, f, args...) calls f(component, args...), with the component as a torch::Tensor");
    return detail::AfterCompileError();
  } else {
    return update_components(variable, f, args...);
  }
}

template <class F, class... Args>
auto StrategyExtended::update_components(const Variable& variable, F& f, const Args&... args) {
  require_own(variable, "update");
  const std::vector<at::Tensor>& components = variable.values();
  using Result = std::decay_t<std::invoke_result_t<F&, at::Tensor, decltype(select_component(args, 0))...>>;
  const auto update_all = [&](const auto&... parts) {
    const auto replicas = detail::first_replicas(components.size());
    detail::require_components_for_update("update", replicas, parts...);
    return update_each(replicas, [&](int k) -> Result {
      return f(at::Tensor(components[static_cast<std::size_t>(k)]), select_component(parts, k)...);
    });
  };
  if (has_strategy() && in_replica_context()) {
    detail::require_current_strategy(strategy_, "update");
    if constexpr (sizeof...(Args) > 0) refuse_divergence("update");  // replicas give one argument each
    auto& replica = get_replica_context();
    if constexpr (std::is_void_v<Result>) {
      replica.merge_call(
          [&](Strategy&, const PerReplica<Variable>& variables, const auto&... parts) {
            require_one_variable(variables);
            update_all(parts...);
          },
          variable, select_component(args, replica.local_index())...);
    } else {
      // Every replica gets the whole; as a Mirrored it stands for the replica's own component there.
      const auto whole = replica.merge_call(
          [&](Strategy&, const PerReplica<Variable>& variables, const auto&... parts) {
            require_one_variable(variables);
            return std::make_shared<Mirrored<Result>>(update_all(parts...));
          },
          variable, select_component(args, replica.local_index())...);
      return Mirrored<Result>(*whole);
    }
  } else {
    detail::require_cross_replica(strategy_, "update");
    [[maybe_unused]] const auto refuse = [&](std::string_view kind, const auto&...) {
      if (kind != Mirrored<int>::kKind) refuse_divergence("update");
    };
    (for_each_distributed(args, refuse), ...);
    return update_all(args...);
  }
}

template <class F, class... Args>
auto StrategyExtended::update_non_slot(const Devices& colocate_with, F&& f, const Args&... args) {
  detail::require_cross_replica(strategy_, "update_non_slot");
  const std::vector<int> replicas = replicas_on(colocate_with);
  detail::require_components_for_update("update_non_slot", replicas, args...);
  const auto call = [&]([[maybe_unused]] int k) { return f(select_component(args, k)...); };
  if constexpr (std::is_void_v<decltype(call(0))>) {
    update_each(replicas, call);
  } else {
    Devices devices;
    for (const int k : replicas) devices.push_back(strategy_.devices()[static_cast<std::size_t>(k)]);
    return placed(update_each(replicas, call), std::move(devices));
  }
}

}  // namespace lockstep
