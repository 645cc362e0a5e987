#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/axis.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/forward.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/replica_context.h"
#include "lockstep/strategy/variable.h"
#include "lockstep/values/local_results.h"
#include "lockstep/values/reducible.h"

namespace lockstep {

class LocalReplicas;
struct LocalReplicasOptions;
class WorkerGroup;
template <class F>
class CapturedStep;  // strategy/captured_step.h

namespace gpu {
class Graph;  // strategy/gpu.h
}

namespace detail {

struct StrategyAccess;
class LocalValues;  // base/local_values.h
struct Runs;        // strategy/detail/runs.h
struct StepRows;    // strategy/detail/step_rows.h

/// Converts a leaf of a structure to its value across replicas: a variable to all its components, anything else
/// unchanged.
struct ComponentsOfVariables {
  LOCKSTEP_EXPORT PerReplica<at::Tensor> operator()(const Variable& variable) const;
  template <class T>
  T operator()(const T& leaf) const {
    return leaf;
  }
};

/// The variable that all replicas have returned or brought to a merge point; throws if they differ.
LOCKSTEP_EXPORT const Variable& one_variable(const Variable* first, std::size_t count, const char* operation);

/// Whether one client program drives the replicas of several workers; see strategy/variable_rules.h.
LOCKSTEP_EXPORT bool is_client_of_several_workers(const Strategy& strategy);

}  // namespace detail

/// The replica that a value is made for; see `Strategy::values_from_function`.
struct ValueContext {
  int replica_id_in_sync_group = 0;  ///< number of the replica, from 0
  int num_replicas_in_sync = 1;      ///< number of replicas over all workers
};

/// The failure of the last run that threw, for exceptions that cannot carry the replica themselves.
struct RunFailure {
  int replica;            ///< number of the failed replica
  std::string what;       ///< message of the exception
  std::string type = {};  ///< type of the exception, such as "std::out_of_range"
};

/// Runs a function on every replica and combines their values. Replicas are numbered 0 to N - 1; the strategy decides
/// where they run, and programs do not branch on it.
///
///     ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
///     auto step = [](const torch::Tensor& mine) { return mine.square().mean(); };
///     ls::PerReplica<torch::Tensor> losses = strategy.run(step, batch);
///     torch::Tensor loss = strategy.reduce(ls::ReduceOp::Mean, losses);
///
/// A strategy is used from one thread at a time.
class LOCKSTEP_EXPORT Strategy {
 public:
  virtual ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// Number of replicas that train together, over all workers.
  int num_replicas_in_sync() const { return num_replicas_in_sync_; }
  /// Number of replicas in this process.
  int num_local_replicas() const { return num_local_replicas_; }

  /// Number of processes that train together, each running the whole program. 1 for single-process strategies.
  int num_workers() const { return num_replicas_in_sync_ / num_local_replicas_; }
  /// This process's number among the workers; worker 0 is the chief.
  int worker_id() const { return worker_id_; }
  /// Whether this is the worker that writes files and prints on behalf of all.
  bool is_chief() const { return worker_id_ == 0; }

  /// Blocks until all workers have called it. Outside of run; every worker must call it.
  void barrier(const std::source_location& where = std::source_location::current());

  /// Returns the chief's value on every worker; the others' values are ignored. Values must have the same structure on
  /// all workers; only the length of a vector of tensors or numbers may differ. Outside of run; every worker must call
  /// it.
  at::Tensor broadcast(const at::Tensor& value, const std::source_location& where = std::source_location::current());
  template <class T>
  T broadcast(const T& value, const std::source_location& where = std::source_location::current());

  /// Enters the cross-replica context: variables created while the scope lives are distributed.
  Scope scope() { return Scope(*this); }

  /// Calls `f` once per local replica, concurrently, in replica context. A distributed argument needs one component per
  /// local replica and arrives as the replica's own; any other argument is passed by reference. Returns a PerReplica of
  /// what the replicas returned (nothing for void). If replicas throw, the error of the lowest-numbered one is thrown
  /// here once all have stopped. Errors of other replicas are logged if they differ from it.
  template <class F, class... Args>
    requires(!detail::is_signature_v<F>)
  auto run(F&& f, const Args&... args);

  /// Same, after checking that the arguments' leaves match `signature`. Include
  /// <lockstep/data/distribute/distributed_dataset.h>.
  ///
  ///     strategy.run(batches.element_spec(), train_step, batch);
  template <class F, class... Args>
  auto run(const DistributedSpec& signature, F&& f, const Args&... args);

  /// Returns a step that is called with the arguments of `run` and returns what `run` would return. On a GPU it is
  /// recorded and replayed as one CUDA graph, which saves the launch cost of each kernel;
  /// <lockstep/strategy/captured_step.h> has the rules for such a step.
  ///
  ///     auto step = strategy.capture([&](const Digits& mine) { ...; return loss.detach(); });
  ///     for (const auto& batch : batches) auto losses = step(batch);
  template <class F>
  CapturedStep<std::decay_t<F>> capture(F&& f);

  /// The sum or mean over all replicas as one plain value, leaf by leaf for structures. With `axis`, each replica first
  /// reduces along it, and Mean divides by the number of elements on all replicas, so that uneven and empty components
  /// count correctly. An OnRead variable is reduced over its components; the Mean of a mirrored variable is its value.
  template <class T>
  auto reduce(ReduceOp op, const T& value, const Axis& axis = {},
              const std::source_location& where = std::source_location::current());

  /// The components, concatenated along `axis` in replica order.
  template <class T>
  auto gather(const T& value, std::int64_t axis, const std::source_location& where = std::source_location::current());

  /// A PerReplica of what `f(ValueContext)` returns for each local replica, its tensors on the replica's device.
  template <class F>
  auto values_from_function(F&& f);

  /// The components in this process, as a list; values/local_results.h has the rules for structures.
  template <class T>
  auto local_results(const T& value) const {
    if constexpr (detail::contains_variable_v<T>)
      return lockstep::local_results(map_structure(detail::ComponentsOfVariables(), value), num_local_replicas());
    else
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
  template <int = 0, class Given, class... Rest>
    requires(!detail::is_factory_call_v<Given, Rest...>)
  auto make(Given&&, const Rest&...) {
    constexpr bool kIsModule = detail::BuiltModule<std::remove_cvref_t<Given>>;
    static_assert(!kIsModule,
                  "strategy.make builds a module per replica and cannot take one that exists: write "
                  "strategy.make<Net>(arguments...) or strategy.make([] { return Net(arguments...); })");
    static_assert(kIsModule,
                  "strategy.make(f) calls f without arguments and takes ModuleOptions at most: write "
                  "strategy.make<Net>(arguments...) or strategy.make([=] { return Net(arguments...); })");
    return detail::AfterCompileError();
  }

  /// An optimizer for all parameters of a model, or for groups of them. Include <lockstep/nn/mirrored_optimizer.h>.
  ///
  ///     auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, 0.1);  // only a learning rate
  ///     auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1).momentum(0.9));
  template <class Opt, class Module, class Options>
  MirroredOptimizer<Opt> make_optimizer(const Module& module, const Options& options);
  template <class Opt, class Module>
  MirroredOptimizer<Opt> make_optimizer(
      const Module& module, std::initializer_list<ParameterGroup<typename OptimizerOptionsOf<Opt>::type>> groups);
  template <class Opt, class Options, class Module>
  MirroredOptimizer<Opt> make_optimizer(const Module& module, const std::vector<ParameterGroup<Options>>& groups);
  template <class Opt, class Module>
  auto make_optimizer(const Module&) {
    static_assert(detail::never<Opt>,
                  "make_optimizer needs options or a learning rate: strategy.make_optimizer<Opt>(model, 0.1)");
    return detail::AfterCompileError();
  }
  template <class Module, class... Rest>
    requires detail::is_mirrored_module_v<Module>
  auto make_optimizer(const Module&, const Rest&...) {
    static_assert(detail::never<Module>,
                  "make_optimizer needs the optimizer's class: strategy.make_optimizer<torch::optim::SGD>(model, 0.1)");
    return detail::AfterCompileError();
  }

  /// A dataset whose batches are global ones, cut into a batch per replica. Include
  /// <lockstep/data/distribute/distributed_dataset.h>.
  ///
  ///     for (const auto& batch : strategy.distribute(digits.batch(64))) strategy.run(train_step, batch);
  template <class T>
  DistributedDataset<T> distribute(const data::Dataset<T>& dataset);
  template <class T>
  DistributedDataset<T> distribute(const data::Dataset<T>& dataset, const InputOptions& options);
  template <int = 0, class Given, class... Rest>
    requires(!detail::IsDataset<Given>)
  auto distribute(Given&&, const Rest&...) {
    static_assert(
        detail::never<Given>,
        "distribute takes an ls::data::Dataset: make one with ls::data::from_torch_dataset(dataset), or cut the batches "
        "of a torch::data DataLoader with strategy.split(batch)");
    return detail::AfterCompileError();
  }

  /// A dataset of per-replica batches: `make(InputContext)` gives this worker's pipeline, whose elements go to the
  /// replicas in turn; nothing is split or shared out.
  template <class F>
  auto distribute_from_function(F&& make);
  template <class F>
  auto distribute_from_function(F&& make, const InputOptions& options);

  /// Cuts a batch that you have, such as one from a `torch::data` DataLoader, along its first dimension into one part
  /// per local replica, moved to its device: as evenly as possible, the larger parts first. Parts are detached from any
  /// graph. A part is a view if the batch is already on its device and has contiguous rows. Include
  /// <lockstep/data/distribute/distributed_dataset.h>.
  ///
  ///     for (auto& batch : *loader) strategy.run(train_step, strategy.split(batch));
  template <class T>
  PerReplica<T> split(const T& batch);

  /// A dataset of the rows of tensors in memory, or of npy files given by name, which are memory-mapped. First
  /// dimensions must be equal; a vector of tensors is stacked.
  ///
  ///     auto digits = strategy.make_numpy_dataset(std::pair{"images.npy", "labels.npy"});
  template <class T>
  auto make_numpy_dataset(T arrays);

  /// The lower-level methods.
  StrategyExtended& extended() { return *extended_; }

  /// The failure of the last run that threw: which replica, and why.
  const std::optional<RunFailure>& last_failure() const;

  /// The seed of the replicas' random numbers. A job with only one replica draws from LibTorch's own generator: its
  /// seed.
  std::uint64_t seed() const;
  /// Calls `torch::manual_seed` and also restarts the replicas' own random numbers, which `torch::manual_seed` does not
  /// reach if there are several replicas. Use it to repeat an evaluation with dropout exactly. Outside of run; every
  /// worker must call it with the same seed.
  void set_seed(std::uint64_t seed, const std::source_location& where = std::source_location::current());

  /// Number of threads that one replica uses inside an operation.
  int intra_op_threads() const;

  /// The devices of this process's replicas.
  const Devices& devices() const { return devices_; }
  /// The context of a replica of this process.
  ReplicaContext& replica_context(int local_index);
  /// The algorithms that move values between replicas.
  CrossDeviceOps& cross_device_ops() const { return *cross_device_ops_; }
  /// The default options of collectives.
  const CommunicationOptions& communication() const { return communication_; }
  /// Whether calls that could make components differ are refused.
  bool strict() const { return strict_; }
  /// Whether this is the default strategy, which is current outside of every scope.
  virtual bool is_default() const { return false; }
  /// A readable description of the strategy and its devices; printing a strategy prints this.
  virtual std::string describe() const;

 protected:
  /// The parts that a strategy is built from.
  struct Parts {
    std::vector<DeviceName> devices;                   ///< one replica on each
    std::shared_ptr<CrossDeviceOps> cross_device_ops;  ///< moves values between replicas
    CommunicationOptions communication = {};           ///< default options of collectives
    bool strict = false;                               ///< refuse calls that could make components differ
    std::shared_ptr<WorkerGroup> workers = {};         ///< null: only this process
  };
  explicit Strategy(Parts parts);

  /// Creates the threads of the local replicas; fills in the fields of `options` that say which replicas these are.
  void make_replicas(LocalReplicasOptions options, bool deterministic);

  /// Calls `body(k, seat)` once for each local replica k, on its thread; `seat` is null if replicas cannot meet.
  virtual void run_replicas(FunctionRef<void(int local_index, local::Seat* seat)> body);

  /// Records runs on a GPU; null unless the replicas are on one.
  virtual std::shared_ptr<gpu::Graph> make_graph();

  std::unique_ptr<LocalReplicas> replicas_;  ///< null if they have no threads of their own

 private:
  friend class StrategyExtended;
  friend class ReplicaContext;
  friend struct detail::StrategyAccess;
  using Leaves = std::vector<ReducibleLeaf>;

  /// Throws the failure with the replica added to its message. Errors of other replicas are logged if they differ.
  [[noreturn]] void raise_failure(const local::ReplicaFailure& failure);
  /// In a program that is one client of several workers, marks `value` as this worker's part of a larger value.
  template <class T>
  PerReplica<T> as_one_of_all(PerReplica<T> value) const {
    if (num_workers() > 1 && detail::is_client_of_several_workers(*this))
      value.set_whole_size(static_cast<std::size_t>(num_replicas_in_sync_));
    return value;
  }
  /// Calls `call(k)` for each local replica k, on its thread and in its context.
  void run_on_replicas(const detail::StepRows& rows, FunctionRef<void(std::size_t k)> call);
  /// Throws if the variable belongs to another strategy.
  const std::vector<at::Tensor>& components_of(const Variable& variable, const char* operation) const;
  at::Tensor reduce_variable(ReduceOp op, const Variable& variable, const Axis& axis);
  at::Tensor gather_variable(const Variable& variable, std::int64_t axis);

  /// `components` holds the leaves of each replica's value, `structures` the structure of each, to compare. Returns the
  /// reduction for each of the destinations.
  std::vector<Leaves> reduce_across(ReduceOp op, const std::vector<Leaves>& components,
                                    const std::vector<std::string>& structures, const Devices& destinations,
                                    const CommunicationOptions& options);
  Leaves reduce_components(ReduceOp op, const std::vector<Leaves>& components,
                           const std::vector<std::string>& structures, const Axis& axis);
  /// Reduces a value that all replicas share: `mirrored`, or plain.
  Leaves reduce_shared(ReduceOp op, const Leaves& value, bool mirrored);
  /// Returns the chief's leaves. Workers compare `structure`, the structure of the whole value; null: already compared.
  Leaves broadcast_leaves(const Leaves& leaves, const std::string* structure, const std::source_location& where);
  std::size_t chiefs_size(std::size_t size, const std::source_location& where);
  /// Reduces a plain value over workers; each worker's value counts once.
  Leaves reduce_over_workers(ReduceOp op, const Leaves& value);
  Leaves gather_across(const std::vector<Leaves>& components, const std::vector<std::string>& structures,
                       std::int64_t axis);

  int num_replicas_in_sync_;
  int num_local_replicas_;
  int worker_id_;
  std::shared_ptr<WorkerGroup> workers_;
  Devices devices_;
  std::vector<std::unique_ptr<ReplicaContext>> contexts_;
  std::shared_ptr<CrossDeviceOps> cross_device_ops_;
  CommunicationOptions communication_;
  bool strict_;
  DeviceKinds device_kinds_;
  std::unique_ptr<StrategyExtended> extended_;
  std::unique_ptr<detail::Runs> runs_;
  std::unique_ptr<detail::LocalValues>
      locals_;                        ///< state that other parts keep with it (strategy/detail/strategy_local.h)
  std::shared_ptr<Strategy*> alive_;  ///< variables hold it weakly, to notice when they outlive their strategy
};

LOCKSTEP_EXPORT std::ostream& operator<<(std::ostream& out, const Strategy& strategy);

}  // namespace lockstep

#include "lockstep/strategy/detail/strategy_templates.h"
