#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/forward.h"
#include "lockstep/strategy/detail/hand_over.h"
#include "lockstep/values/per_replica.h"
#include "lockstep/values/reducible.h"
#include "lockstep/values/select.h"
#include "lockstep/values/structure.h"

namespace lockstep {

class Variable;

namespace local {
class Seat;
}

namespace detail {

template <class T>
struct IsVariable : std::is_same<T, Variable> {};

/// Whether S is a Variable or a standard container of some, at any depth.
template <class S>
inline constexpr bool contains_variable_v = Contains<IsVariable, S>::value;

/// Replaces a variable by its value as a tensor; leaves anything else unchanged.
struct ReadVariables {
  LOCKSTEP_EXPORT at::Tensor operator()(const Variable& variable) const;
  template <class T>
  T operator()(const T& leaf) const {
    return leaf;
  }
};

/// The type of one replica's part of a merge function's result.
template <class Result>
struct PartOf {
  using type = selected_t<Result>;
};
template <>
struct PartOf<void> {
  using type = std::monostate;
};

}  // namespace detail

/// A replica function's view of its replica and of the others, returned by `get_replica_context()`.
///
///     strategy.run([] {
///       auto& replica = ls::get_replica_context();
///       auto mine = torch::full({1}, replica.replica_id_in_sync_group(), replica.device());
///       auto sum = replica.all_reduce(ls::ReduceOp::Sum, mine);   // the same on every replica
///     });
///
/// `merge_call`, `all_reduce` and `all_gather` are meetings: every replica must make the same calls in the same order,
/// each on its own thread. The object itself lives as long as its strategy.
class LOCKSTEP_EXPORT ReplicaContext {
 public:
  ReplicaContext(Strategy& strategy, int local_index, int replica_id, at::Device device, std::string device_name);

  /// The replica's number over all workers, its number in this process, and the number of replicas over all workers.
  int replica_id_in_sync_group() const { return replica_id_; }
  int local_index() const { return local_index_; }
  int num_replicas_in_sync() const;
  /// The strategy that runs this replica, and the replica's device.
  Strategy& strategy() const { return *strategy_; }
  at::Device device() const { return device_; }
  const std::string& device_name() const { return device_name_; }

  /// Calls `f(strategy, per_replica_args...)` once, for all replicas, in cross-replica context on the thread that
  /// called `run`; it is replica 0's `f` that is called. Each argument arrives as a PerReplica of the replicas'
  /// arguments. Distributed values in the result are split, and each replica gets its component; anything else goes to
  /// all.
  ///
  ///     auto total = replica.merge_call([](ls::Strategy& s, ls::PerReplica<torch::Tensor> x) {
  ///       return s.reduce(ls::ReduceOp::Sum, x);
  ///     }, mine);
  template <class F, class... Args>
  auto merge_call(F&& f, Args&&... args);

  /// The sum or mean over all replicas, bitwise equal on each, leaf by leaf for structures. Differentiable: the
  /// gradient is the all-reduce of the incoming gradients with the same operation. A Variable counts as its value on
  /// this replica, and the result is a tensor.
  at::Tensor all_reduce(ReduceOp op, const at::Tensor& value, const CommunicationOptions& options = {},
                        const std::source_location& where = std::source_location::current());
  template <class S>
  auto all_reduce(ReduceOp op, const S& value, const CommunicationOptions& options = {},
                  const std::source_location& where = std::source_location::current()) {
    const detail::CallPlace place(where);
    if constexpr (detail::contains_variable_v<S>)
      return all_reduce(op, map_structure(detail::ReadVariables(), value), options);
    else
      return unflatten_reducible(value,
                                 all_reduce_leaves(op, flatten_reducible(value), structure_string(value), options));
  }

  /// All replicas' values, concatenated along `axis` in replica order; only the size of that axis may differ.
  /// Differentiable: a replica's gradient is its own part of the summed gradients.
  at::Tensor all_gather(const at::Tensor& value, std::int64_t axis, const CommunicationOptions& options = {},
                        const std::source_location& where = std::source_location::current());
  template <class S>
  auto all_gather(const S& value, std::int64_t axis, const CommunicationOptions& options = {},
                  const std::source_location& where = std::source_location::current()) {
    const detail::CallPlace place(where);
    if constexpr (detail::contains_variable_v<S>)
      return all_gather(map_structure(detail::ReadVariables(), value), axis, options);
    else
      return unflatten_reducible(value,
                                 all_gather_leaves(flatten_reducible(value), axis, structure_string(value), options));
  }

  /// The replica's place among the threads of the current run, for library code; null if replicas cannot meet.
  local::Seat* seat() const { return seat_; }
  /// Throws unless this is the calling replica.
  void require_current(const char* operation) const;

 private:
  friend class Strategy;

  using Leaves = std::vector<ReducibleLeaf>;
  Leaves all_reduce_leaves(ReduceOp op, Leaves leaves, std::string structure, const CommunicationOptions& options);
  Leaves all_gather_leaves(Leaves leaves, std::int64_t axis, std::string structure,
                           const CommunicationOptions& options);

  /// The arguments of one replica at a merge point. `type` is compared before replica 0 reads them.
  struct Ticket {
    const std::type_info* type;
  };
  template <class F, class... Args>
  auto merge_replicas(F& f, Args&&... args);
  void meet_and_lead(const Ticket& ticket, FunctionRef<void(const std::vector<const Ticket*>&)> act);

  Strategy* strategy_;
  int local_index_;
  int replica_id_;
  at::Device device_;
  std::string device_name_;
  local::Seat* seat_ = nullptr;  ///< set during a run; null in the default context
};

template <class F, class... Args>
auto ReplicaContext::merge_call(F&& f, Args&&... args) {
  if constexpr (!std::is_invocable_v<F&, Strategy&, PerReplica<std::decay_t<Args>>...>) {
    static_assert(detail::never<F, Args...>,
                  "merge_call(f, args...) calls f(lockstep::Strategy&, lockstep::PerReplica<T>...), with a PerReplica "
                  "for each argument");
    return detail::AfterCompileError();
  } else {
    return merge_replicas(f, std::forward<Args>(args)...);
  }
}

template <class F, class... Args>
auto ReplicaContext::merge_replicas(F& f, Args&&... args) {
  require_current("merge_call");
  using Result = std::invoke_result_t<F&, Strategy&, PerReplica<std::decay_t<Args>>...>;
  constexpr bool kNoResult = std::is_void_v<Result>;
  using Part = typename detail::PartOf<Result>::type;
  struct Brought : Ticket {
    std::tuple<std::decay_t<Args>...> args;
    std::optional<Part> part;
  };
  Brought mine{{&typeid(Brought)}, {std::forward<Args>(args)...}, std::nullopt};

  const auto act = [&](const std::vector<const Ticket*>& tickets) {
    std::vector<Brought*> all;
    for (const Ticket* ticket : tickets) all.push_back(const_cast<Brought*>(static_cast<const Brought*>(ticket)));
    const auto collect = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
      std::vector<std::tuple_element_t<I, decltype(mine.args)>> parts;
      for (Brought* brought : all) parts.push_back(std::move(std::get<I>(brought->args)));
      return PerReplica<std::tuple_element_t<I, decltype(mine.args)>>(std::move(parts));
    };
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      if constexpr (kNoResult) {
        f(strategy(), collect(std::integral_constant<std::size_t, I>{})...);
      } else {
        const auto result = f(strategy(), collect(std::integral_constant<std::size_t, I>{})...);
        for (std::size_t k = 0; k < all.size(); ++k)
          all[k]->part.emplace(select_component(result, static_cast<int>(k)));
      }
    }
    (std::index_sequence_for<Args...>{});
  };
  meet_and_lead(mine, act);
  if constexpr (!kNoResult) {
    detail::take_over(*mine.part);
    return std::move(*mine.part);
  }
}

}  // namespace lockstep
