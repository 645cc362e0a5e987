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

/// A leaf of a structure as values across replicas are: of a variable all its components.
struct ComponentsOfVariables {
  LOCKSTEP_EXPORT PerReplica<at::Tensor> operator()(const Variable& variable) const;
  template <class T>
  T operator()(const T& leaf) const {
    return leaf;
  }
};

/// The variable that all replicas have returned or brought to a merge point; throws if they differ.
LOCKSTEP_EXPORT const Variable& one_variable(const Variable* first, std::size_t count, const char* operation);

/// Whether the program stands for several workers; see strategy/variable_rules.h.
LOCKSTEP_EXPORT bool is_client_of_several_workers(const Strategy& strategy);

}  // namespace detail

/// Which replica of how many a value is made for; see `Strategy::values_from_function`.
struct ValueContext {
  int replica_id_in_sync_group = 0;  ///< the number of the replica, from 0
  int num_replicas_in_sync = 1;      ///< how many replicas there are, over all workers
};

/// The last failure of a run: which replica, and what. For exceptions that cannot carry the replica themselves.
struct RunFailure {
  int replica;            ///< the one that failed
  std::string what;       ///< the text of the exception
  std::string type = {};  ///< of the exception: "std::out_of_range"
};

/// Runs a function on every replica and brings values together. Replicas are numbered 0 to N - 1; the strategy decides
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

  /// How many replicas train together, over all workers.
  int num_replicas_in_sync() const { return num_replicas_in_sync_; }
  /// How many of them this process runs.
  int num_local_replicas() const { return num_local_replicas_; }

  /// How many processes train together, each of them running the whole program. 1 for strategies of one process.
  int num_workers() const { return num_replicas_in_sync_ / num_local_replicas_; }
  /// This process's number among them; worker 0 is the chief.
  int worker_id() const { return worker_id_; }
  /// Whether this is the worker that writes files and prints for all.
  bool is_chief() const { return worker_id_ == 0; }

  /// Returns when all workers have called it. Outside of run; every worker must call it.
  void barrier(const std::source_location& where = std::source_location::current());

  /// Returns the chief's value on every worker and ignores the others' values. Of structures only a vector of tensors or
  /// numbers may have another size there. Outside of run; every worker must call it.
  at::Tensor broadcast(const at::Tensor& value, const std::source_location& where = std::source_location::current());
  template <class T>
  T broadcast(const T& value, const std::source_location& where = std::source_location::current());

  /// Enters the cross-replica context: variables created while the scope lives are distributed.
  Scope scope() { return Scope(*this); }

  /// Calls `f` once per local replica, at the same time, in replica context. Distributed arguments arrive as the
  /// replica's component and need one for each local replica; anything else arrives as it is, by reference. Returns
  /// what the replicas returned as a PerReplica (nothing for void). If replicas throw, the error of the lowest replica
  /// is thrown here once all have stopped. It is not logged; errors of other replicas are, where they differ from it.
  template <class F, class... Args>
    requires(!detail::is_signature_v<F>)
  auto run(F&& f, const Args&... args);

  /// The same after checking that the arguments' leaves are as `signature` says. Include
  /// <lockstep/data/distribute/distributed_dataset.h>.
  ///
  ///     strategy.run(batches.element_spec(), train_step, batch);
  template <class F, class... Args>
  auto run(const DistributedSpec& signature, F&& f, const Args&... args);

  /// A step that is called like a function, with the arguments that `run` would take, and returns what `run` would return. On a GPU
  /// it is recorded and repeated as one CUDA graph, which saves the time of starting its kernels one by one; see
  /// <lockstep/strategy/captured_step.h> for what such a step must keep to.
  ///
  ///     auto step = strategy.capture([&](const Digits& mine) { ...; return loss.detach(); });
  ///     for (const auto& batch : batches) auto losses = step(batch);
  template <class F>
  CapturedStep<std::decay_t<F>> capture(F&& f);

  /// The sum or mean over all replicas, as one plain value; leaf by leaf for structures. With `axis`, each replica
  /// first reduces along it, and Mean divides by the number of elements of all replicas: exact for uneven and empty
  /// ones. An OnRead variable is reduced over its components; of a mirrored one Mean is its value.
  template <class T>
  auto reduce(ReduceOp op, const T& value, const Axis& axis = {},
              const std::source_location& where = std::source_location::current());

  /// The components, concatenated along `axis` in replica order.
  template <class T>
  auto gather(const T& value, std::int64_t axis, const std::source_location& where = std::source_location::current());

  /// A PerReplica of what `f(ValueContext)` returns for each local replica, its tensors on the replica's device.
  template <class F>
  auto values_from_function(F&& f);

  /// The components that are in this process, as a list; values/local_results.h has the rules for structures.
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

  /// A batch that you have, such as one from a `torch::data` DataLoader, cut along its first dimension into one part
  /// per local replica, on its device: as evenly as possible, the larger parts first. Parts are detached from
  /// any graph, and views of a batch that is on their device and whose rows are contiguous. Include
  /// <lockstep/data/distribute/distributed_dataset.h>.
  ///
  ///     for (auto& batch : *loader) strategy.run(train_step, strategy.split(batch));
  template <class T>
  PerReplica<T> split(const T& batch);

  /// A dataset of the rows of tensors in memory, or of the npy files named in their place, which are mapped into
  /// memory. First dimensions must be equal; a vector of tensors is stacked.
  ///
  ///     auto digits = strategy.make_numpy_dataset(std::pair{"images.npy", "labels.npy"});
  template <class T>
  auto make_numpy_dataset(T arrays);

  /// The lower-level methods.
  StrategyExtended& extended() { return *extended_; }

  /// Which replica failed in the last run that threw.
  const std::optional<RunFailure>& last_failure() const;

  /// The seed of the replicas' random numbers; with one replica in all that of LibTorch's generator, which it draws from.
  std::uint64_t seed() const;
  /// Does what `torch::manual_seed` does, and restarts the random numbers of several replicas, which `torch::manual_seed` does
  /// not reach: for an evaluation with dropout that gives the same each time. Outside of run; every worker must call it, with
  /// the same seed.
  void set_seed(std::uint64_t seed, const std::source_location& where = std::source_location::current());

  /// Threads that one replica uses inside an operation.
  int intra_op_threads() const;

  /// The devices of this process's replicas.
  const Devices& devices() const { return devices_; }
  /// The context of a replica of this process.
  ReplicaContext& replica_context(int local_index);
  /// How values travel between replicas.
  CrossDeviceOps& cross_device_ops() const { return *cross_device_ops_; }
  /// The defaults of collectives.
  const CommunicationOptions& communication() const { return communication_; }
  /// Whether calls that could make components differ are refused.
  bool strict() const { return strict_; }
  /// Whether it is the strategy outside of every scope.
  virtual bool is_default() const { return false; }
  /// What it is and where its replicas run, for people; printing a strategy prints this.
  virtual std::string describe() const;

 protected:
  /// What a strategy is made of.
  struct Parts {
    std::vector<DeviceName> devices;                   ///< one replica on each
    std::shared_ptr<CrossDeviceOps> cross_device_ops;  ///< how values travel between replicas
    CommunicationOptions communication = {};           ///< the defaults of collectives
    bool strict = false;                               ///< refuses calls that could make components differ
    std::shared_ptr<WorkerGroup> workers = {};         ///< null: this process alone
  };
  explicit Strategy(Parts parts);

  /// Gives each local replica a thread; which replicas these are, the strategy knows.
  void make_replicas(LocalReplicasOptions options, bool deterministic);

  /// Calls `body(k, seat)` once for each local replica k, on its thread; `seat` is null where there are no meetings.
  virtual void run_replicas(FunctionRef<void(int local_index, local::Seat* seat)> body);

  /// For recording runs on a GPU; null where the replicas are on none.
  virtual std::shared_ptr<gpu::Graph> make_graph();

  std::unique_ptr<LocalReplicas> replicas_;  ///< null if they have no threads of their own

 private:
  friend class StrategyExtended;
  friend class ReplicaContext;
  friend struct detail::StrategyAccess;
  using Leaves = std::vector<ReducibleLeaf>;

  /// Throws the failure with the replica added to its text. What other replicas have thrown is logged where it differs.
  [[noreturn]] void raise_failure(const local::ReplicaFailure& failure);
  /// To one client, what has one component on each worker is not one value.
  template <class T>
  PerReplica<T> as_one_of_all(PerReplica<T> value) const {
    if (num_workers() > 1 && detail::is_client_of_several_workers(*this))
      value.set_whole_size(static_cast<std::size_t>(num_replicas_in_sync_));
    return value;
  }
  /// Calls `call(k)` for each local replica k, on its thread and in its context.
  void run_on_replicas(const detail::StepRows& rows, FunctionRef<void(std::size_t k)> call);
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
  /// The chief's leaves. `structure` is that of the value they are of, which workers then compare; null: it is known.
  Leaves broadcast_leaves(const Leaves& leaves, const std::string* structure, const std::source_location& where);
  std::size_t chiefs_size(std::size_t size, const std::source_location& where);
  /// A plain value of several workers counts once for each of them.
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
  std::unique_ptr<detail::LocalValues> locals_;  ///< what others keep with it (strategy/detail/strategy_local.h)
  std::shared_ptr<Strategy*> alive_;  ///< variables hold it weakly, to notice when they outlive their strategy
};

LOCKSTEP_EXPORT std::ostream& operator<<(std::ostream& out, const Strategy& strategy);

}  // namespace lockstep

#include "lockstep/strategy/detail/strategy_templates.h"
