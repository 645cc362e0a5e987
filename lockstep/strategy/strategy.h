#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/axis.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/replica_context.h"
#include "lockstep/strategy/variable.h"
#include "lockstep/values/local_results.h"
#include "lockstep/values/per_replica.h"
#include "lockstep/values/reducible.h"
#include "lockstep/values/select.h"

namespace lockstep {

class CrossDeviceOps;
class StrategyExtended;
struct ModuleOptions;  // nn/module_core.h
template <class Opt>
class MirroredOptimizer;  // nn/mirrored_optimizer.h
template <class Options>
struct ParameterGroup;
template <class Opt>
struct OptimizerOptionsOf;
struct InputOptions;  // data/distribute/input_options.h

namespace data {
template <class T>
class Dataset;  // data/dataset.h
template <class T>
class DistributedDataset;  // data/distribute/distributed_dataset.h
struct DistributedSpec;
}  // namespace data

namespace local {
class ReplicaTeam;
}

namespace detail {
template <class T>
inline constexpr bool is_per_replica_v = false;
template <class T>
inline constexpr bool is_per_replica_v<PerReplica<T>> = true;
template <class T>
inline constexpr bool is_mirrored_v = false;
template <class T>
inline constexpr bool is_mirrored_v<Mirrored<T>> = true;

/// A function that builds a module, as opposed to a module class or holder.
template <class F>
concept ModuleFactory = !requires {
  typename F::ContainedType;
}
&&!requires(F & f) { f.named_parameters(); }
&&std::is_invocable_v<F&>;

template <class...>
inline constexpr bool begins_with_options_v = false;
template <class First, class... Rest>
inline constexpr bool begins_with_options_v<First, Rest...> = std::is_same_v<std::decay_t<First>, ModuleOptions>;
}  // namespace detail

/// Which replica of how many a value is made for; see `Strategy::values_from_function`.
struct ValueContext {
  int replica_id_in_sync_group = 0;
  int num_replicas_in_sync = 1;
};

/// The last failure of a run: who and what. Kept for exceptions that cannot carry the replica themselves.
struct RunFailure {
  int replica;
  std::string what;
};

/// Runs a function on every replica and brings values together. Replicas are numbered 0 to N - 1; where they run is the
/// strategy's affair, and programs do not branch on it.
///
///     ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
///     auto losses = strategy.run([&](const torch::Tensor& mine) { return mine.square().mean(); }, batch);  //
///     PerReplica auto loss = strategy.reduce(ls::ReduceOp::Mean, losses);
///
/// A strategy is used from one thread at a time.
class LOCKSTEP_EXPORT Strategy {
 public:
  virtual ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  int num_replicas_in_sync() const { return num_replicas_in_sync_; }
  int num_local_replicas() const { return static_cast<int>(contexts_.size()); }

  /// Enters the cross-replica context: variables created while the scope lives are distributed.
  Scope scope() { return Scope(*this); }

  /// Calls `f` once per local replica, at the same time, in replica context. Distributed arguments arrive as the
  /// replica's component, anything else as it is, by reference; they need one component for each local replica. Returns
  /// what the replicas returned as a PerReplica (nothing for void). If replicas throw, the error of the lowest replica
  /// is thrown here once all have stopped.
  template <class F, class... Args>
    requires(!std::is_same_v<std::remove_cvref_t<F>, data::DistributedSpec>)
  auto run(F&& f, const Args&... args);

  /// The same after checking the arguments: their leaves must be as `signature` says, which a distributed dataset tells
  /// of its values. Include <lockstep/data/distribute/distributed_dataset.h>.
  ///
  ///     strategy.run(batches.element_spec(), train_step, batch);
  template <class F, class... Args>
  auto run(const data::DistributedSpec& signature, F&& f, const Args&... args);

  /// The sum or mean over all replicas, as one plain value; leaf by leaf for structures. With `axis` each replica first
  /// reduces along it, and MEAN divides by the number of elements of all replicas: exact for uneven and empty ones.
  template <class T>
  auto reduce(ReduceOp op, const T& value, const Axis& axis = {});

  /// The components one behind the other along `axis`, in replica order.
  template <class T>
  auto gather(const T& value, std::int64_t axis);

  /// A PerReplica of what `f(ValueContext)` returns for each local replica.
  template <class F>
  auto values_from_function(F&& f);

  /// The components that are in this process, as a list (SPEC of structures: local_results.h).
  template <class T>
  auto local_results(const T& value) const {
    return lockstep::local_results(value, num_local_replicas());
  }

  /// The components of a variable.
  const std::vector<at::Tensor>& local_results(const Variable& variable) const { return variable.values(); }

  /// A distributed variable; the same as constructing one inside `scope()`.
  Variable make_variable(const at::Tensor& initial_value, VariableOptions options = {});

  /// A model: a `torch::nn::Module` per replica and one set of weights. Include <lockstep/nn/mirrored_module.h>.
  ///
  ///     auto model = strategy.make<Net>(128);                                    // any module class or holder
  ///     auto model = strategy.make<Net>({.channels_last = true}, 128);           // the same with ModuleOptions
  ///     auto model = strategy.make([] { return torch::nn::Sequential(...); });   // or whatever a function builds
  template <class Net, class... Args>
    requires(!detail::begins_with_options_v<Args...>)
  auto make(Args&&... args);
  template <class Net, class... Args>
  auto make(const ModuleOptions& options, Args&&... args);
  template <detail::ModuleFactory F>
  auto make(F&& factory, const ModuleOptions& options);
  template <detail::ModuleFactory F>
  auto make(F&& factory);

  /// An optimizer for all parameters of a model, or for groups of them. Include <lockstep/nn/mirrored_optimizer.h>.
  ///
  ///     auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model,
  ///     torch::optim::SGDOptions(0.1).momentum(0.9)); auto optimizer =
  ///     strategy.make_optimizer<torch::optim::SGD>(model, 0.1);    // only a learning rate
  template <class Opt, class Model, class Options>
  MirroredOptimizer<Opt> make_optimizer(const Model& model, const Options& options);
  template <class Opt, class Model>
  MirroredOptimizer<Opt> make_optimizer(
      const Model& model, std::initializer_list<ParameterGroup<typename OptimizerOptionsOf<Opt>::type>> groups);
  template <class Opt, class Options, class Model>
  MirroredOptimizer<Opt> make_optimizer(const Model& model, const std::vector<ParameterGroup<Options>>& groups);

  /// A dataset whose batches are global ones, cut into a batch per replica. Include
  /// <lockstep/data/distribute/distributed_dataset.h>.
  ///
  ///     for (const auto& batch : strategy.distribute(digits.batch(64))) strategy.run(train_step, batch);
  template <class T>
  data::DistributedDataset<T> distribute(const data::Dataset<T>& dataset);
  template <class T>
  data::DistributedDataset<T> distribute(const data::Dataset<T>& dataset, const InputOptions& options);

  /// A dataset of per-replica batches: `make(InputContext)` gives this worker's pipeline, whose elements go to the
  /// replicas in turn; nothing is split or shared out.
  template <class F>
  auto distribute_from_function(F&& make);
  template <class F>
  auto distribute_from_function(F&& make, const InputOptions& options);

  /// A dataset of the rows of tensors in memory, or of npy files named in their place, which are mapped. First
  /// dimensions must be equal; a vector of tensors is stacked.
  ///
  ///     auto digits = strategy.make_numpy_dataset(std::pair{"images.npy", "labels.npy"});
  template <class T>
  auto make_numpy_dataset(T arrays);

  /// The lower-level methods.
  StrategyExtended& extended() { return *extended_; }

  /// Who failed in the last run that threw.
  const std::optional<RunFailure>& last_failure() const { return last_failure_; }
  /// How many runs have thrown. What keeps something from one run to the next sees here that a run was cut short.
  std::uint64_t failed_runs() const { return failed_runs_; }

  /// The seed of all random numbers that are the strategy's affair.
  virtual std::uint64_t seed() const;
  /// The seed for building the next model: a function of the job's seed and of how many were built before.
  std::uint64_t next_make_seed();
  /// Expires when the strategy does.
  std::weak_ptr<Strategy*> alive() const { return alive_; }

  const Devices& devices() const { return devices_; }
  ReplicaContext& replica_context(int local_index) { return *contexts_.at(static_cast<std::size_t>(local_index)); }
  CrossDeviceOps& cross_device_ops() const { return *cross_device_ops_; }
  const CommunicationOptions& communication() const { return communication_; }
  bool strict() const { return strict_; }
  virtual bool is_default() const { return false; }

 protected:
  struct Parts {
    std::vector<DeviceName> devices;
    std::shared_ptr<CrossDeviceOps> cross_device_ops;
    CommunicationOptions communication = {};
    bool strict = false;
  };
  explicit Strategy(Parts parts);

  /// Calls `body` once per local replica, each inside its replica context.
  virtual void run_replicas(FunctionRef<void(ReplicaContext&)> body) = 0;

  /// For run_replicas: enters replica context k with this seat (null where there are no meetings) and calls `body`.
  void enter_replica(int local_index, local::Seat* seat, FunctionRef<void(ReplicaContext&)> body);
  /// Throws the failure with the replica added to its text.
  [[noreturn]] void raise_failure(int replica, std::exception_ptr error);

 private:
  friend class StrategyExtended;
  friend class ReplicaContext;
  using Leaves = std::vector<ReducibleLeaf>;

  void run_in_scope(FunctionRef<void(ReplicaContext&)> body);
  /// Throws for a variable of another strategy.
  const std::vector<at::Tensor>& components_of(const Variable& variable, const char* operation) const;
  at::Tensor reduce_variable(ReduceOp op, const Variable& variable, const Axis& axis);
  at::Tensor gather_variable(const Variable& variable, std::int64_t axis);

  /// `components` holds the leaves of each replica's value, `structures` its shape for comparison. The result is the
  /// reduction for each of the destinations.
  std::vector<Leaves> reduce_across(ReduceOp op, const std::vector<Leaves>& components,
                                    const std::vector<std::string>& structures, const Devices& destinations,
                                    const CommunicationOptions& options);
  Leaves reduce_components(ReduceOp op, const std::vector<Leaves>& components,
                           const std::vector<std::string>& structures, const Axis& axis);
  /// A value that all replicas share: `mirrored`, or plain.
  Leaves reduce_shared(ReduceOp op, const Leaves& value, bool mirrored);
  Leaves gather_across(const std::vector<Leaves>& components, const std::vector<std::string>& structures,
                       std::int64_t axis);

  int num_replicas_in_sync_;
  Devices devices_;
  std::vector<std::unique_ptr<ReplicaContext>> contexts_;
  std::shared_ptr<CrossDeviceOps> cross_device_ops_;
  CommunicationOptions communication_;
  bool strict_;
  std::unique_ptr<StrategyExtended> extended_;
  std::optional<RunFailure> last_failure_;
  std::uint64_t failed_runs_ = 0;
  int models_made_ = 0;
  std::shared_ptr<Strategy*> alive_;  ///< variables hold it weakly, to notice when they outlive their strategy
};

namespace detail {

[[noreturn]] LOCKSTEP_EXPORT void throw_component_count(std::size_t argument, const char* kind, std::size_t components,
                                                        int replicas);

/// Throws InvalidArgument for a distributed value that has another number of components than there are replicas.
template <class... Args>
void require_components(int replicas, const Args&... args) {
  [[maybe_unused]] std::size_t argument = 0;
  [[maybe_unused]] const auto check = [&](const char* kind, std::size_t components) {
    if (components != static_cast<std::size_t>(replicas)) throw_component_count(argument, kind, components, replicas);
  };
  ((for_each_distributed(args, check), ++argument), ...);
}

}  // namespace detail

template <class F, class... Args>
  requires(!std::is_same_v<std::remove_cvref_t<F>, data::DistributedSpec>)
auto Strategy::run(F&& f, const Args&... args) {
  detail::require_components(num_local_replicas(), args...);
  using Result = std::decay_t<std::invoke_result_t<F&, decltype(select_component(args, 0))...>>;
  if constexpr (std::is_void_v<Result>) {
    run_in_scope([&](ReplicaContext& replica) { f(select_component(args, replica.local_index())...); });
  } else {
    std::vector<std::optional<Result>> results(static_cast<std::size_t>(num_local_replicas()));
    run_in_scope([&](ReplicaContext& replica) {
      const int k = replica.local_index();
      results[static_cast<std::size_t>(k)].emplace(f(select_component(args, k)...));
    });
    return PerReplica<Result>::generate(results.size(),
                                        [&](std::size_t k) -> Result { return std::move(*results[k]); });
  }
}

namespace detail {

/// The components of a value, taken apart for the functions that know no types.
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

template <class T>
auto Strategy::reduce(ReduceOp op, const T& value, const Axis& axis) {
  detail::require_cross_replica(*this, "reduce");
  if constexpr (std::is_same_v<T, Variable>) {
    return reduce_variable(op, value, axis);
  } else if constexpr (is_distributed_v<T>) {
    if (!detail::is_per_replica_v<T> && axis.dims().empty()) {
      return unflatten_reducible(value[0], reduce_shared(op, flatten_reducible(value[0]), /*mirrored=*/true));
    }
    const detail::TakenApart parts(value);
    return unflatten_reducible(value[0], reduce_components(op, parts.leaves, parts.structures, axis));
  } else if constexpr (contains_distributed_v<T>) {
    return map_structure([&](const auto& leaf) { return reduce(op, leaf, axis); }, value);
  } else {
    if constexpr (std::is_arithmetic_v<T>) {
      if (value == T{}) return value;  // nothing, N times
    }
    if (axis.dims().empty())
      return unflatten_reducible(value, reduce_shared(op, flatten_reducible(value), /*mirrored=*/false));
    const detail::TakenApart parts(std::vector<T>(static_cast<std::size_t>(num_local_replicas()), value));
    return unflatten_reducible(value, reduce_components(op, parts.leaves, parts.structures, axis));
  }
}

template <class T>
auto Strategy::gather(const T& value, std::int64_t axis) {
  detail::require_cross_replica(*this, "gather");
  if constexpr (std::is_same_v<T, Variable>) {
    return gather_variable(value, axis);
  } else if constexpr (is_distributed_v<T>) {
    const detail::TakenApart parts(value);
    return unflatten_reducible(value[0], gather_across(parts.leaves, parts.structures, axis));
  } else if constexpr (contains_distributed_v<T>) {
    return map_structure([&](const auto& leaf) { return gather(leaf, axis); }, value);
  } else {
    const detail::TakenApart parts(std::vector<T>{value});
    return unflatten_reducible(value, gather_across(parts.leaves, parts.structures, axis));
  }
}

template <class F>
auto Strategy::values_from_function(F&& f) {
  using Result = std::decay_t<std::invoke_result_t<F&, const ValueContext&>>;
  return PerReplica<Result>::generate(contexts_.size(), [&](std::size_t k) -> Result {
    return f(ValueContext{contexts_[k]->replica_id_in_sync_group(), num_replicas_in_sync()});
  });
}

}  // namespace lockstep
