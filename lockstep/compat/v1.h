#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/deprecated.h"
#include "lockstep/base/export.h"
#include "lockstep/compat/config_proto.h"
#include "lockstep/compat/extended.h"
#include "lockstep/compat/input_iterator.h"
#include "lockstep/compat/names.h"
#include "lockstep/compat/replica_context.h"
#include "lockstep/compat/strategy_handle.h"
#include "lockstep/contrib/multi_step_context.h"

/// Strategies with the names of `tf.compat.v1.distribute` (TensorFlow 2.0 and 2.2).
///
///     namespace tf = lockstep::compat::v1;
///     tf::MirroredStrategy strategy({"cpu:0", "cpu:1"});
///     auto iterator = strategy.make_dataset_iterator(dataset);
///     auto losses = strategy.experimental_run(train_step, iterator);
///     auto loss = strategy.reduce(tf::ReduceOp::SUM, losses);
namespace lockstep::compat::v1 {

using namespace names;  // NOLINT(google-build-using-namespace)

/// TensorFlow 1's `tf.distribute.StrategyExtended`: the calls of `ExtendedHandle` and those that 2.x dropped.
class StrategyExtended : public ExtendedHandle {
 public:
  using ExtendedHandle::ExtendedHandle;

  /// The devices for variables that belong to no other variable.
  Devices non_slot_devices(const std::vector<Variable>& var_list) const {
    return extended().non_slot_devices(var_list);
  }
  /// Calls `fn(args..., kwargs)` once per device; `group` as in `update`.
  template <class F, class Args = std::tuple<>, class Kwargs = std::nullopt_t, bool kGroup = true>
  auto update_non_slot(const Devices& colocate_with, F&& fn, const Args& args = {}, const Kwargs& kwargs = std::nullopt,
                       std::bool_constant<kGroup> = {}) const {
    const auto call = [&](const auto&... each) {
      return own()->extended().update_non_slot(colocate_with, fn, each...);
    };
    return grouped<kGroup>([&] { return call_with(call, args, kwargs); });
  }
  /// Copies a tensor to devices.
  template <class T>
  auto broadcast_to(const T& tensor, const Destinations& destinations) const {
    return own()->extended().broadcast_to(tensor, destinations);
  }
  /// A copy, as in TensorFlow; `v.read()` is the component itself.
  at::Tensor read_var(const Variable& v) const { return own()->extended().read_var(v).clone(); }
  template <class... Values>
  void group(const Values&...) const {}

  /// Calls `fn(context, inputs)` `iterations` times with the iterator's next values, in cross-replica context. The
  /// returned context has the outputs of the last call. `initial_loop_values`: none, or one per tensor of the last-step
  /// outputs; they are not used.
  template <class F, class T>
  contrib::MultiStepContext experimental_run_steps_on_iterator(
      F fn, InputIterator<T>& iterator, int iterations = 1,
      const std::vector<at::Tensor>& initial_loop_values = {}) const {
    static_assert(
        std::is_invocable_v<F&, contrib::MultiStepContext&, PerReplica<T>>,
        "experimental_run_steps_on_iterator(fn, iterator) calls fn(contrib::MultiStepContext&, PerReplica<T>)");
    const auto words = own();
    lockstep::detail::require_cross_replica(core(), "experimental_run_steps_on_iterator");
    auto step = [fn = std::move(fn), iterator](contrib::MultiStepContext& context) mutable {
      if constexpr (std::is_invocable_v<F&, contrib::MultiStepContext&, PerReplica<T>>)
        fn(context, iterator.get_next());
    };
    return contrib::MultiStepContext::run(core(), core().devices(), std::move(step), iterations,
                                          initial_loop_values.size());
  }
};

/// Base of the strategies, returned by `get_strategy()`. compat/arguments.h describes how functions get their
/// arguments.
class Strategy : public StrategyHandle {
 public:
  explicit Strategy(std::shared_ptr<lockstep::Strategy> core) : StrategyHandle(std::move(core), v1_words()) {}
  explicit Strategy(lockstep::Strategy& core) : StrategyHandle(core) {}

  /// The lower-level calls.
  StrategyExtended extended() const { return StrategyExtended(core()); }

  /// Runs `fn(args..., kwargs)` on each replica.
  template <class F, class Args = std::tuple<>, class Kwargs = std::nullopt_t>
  auto run(F&& fn, const Args& args = {}, const Kwargs& kwargs = std::nullopt, const RunOptions& = {}) const {
    return run_with(fn, args, kwargs);
  }
  /// Does what `run` does.
  template <class F, class Args = std::tuple<>, class Kwargs = std::nullopt_t>
  LOCKSTEP_DEPRECATED("renamed to run")
  auto experimental_run_v2(F&& fn, const Args& args = {}, const Kwargs& kwargs = std::nullopt,
                           const RunOptions& = {}) const {
    return run_with(fn, args, kwargs);
  }
  /// Runs `fn` with the iterator's next value as its only argument.
  template <class F, class T>
  LOCKSTEP_DEPRECATED("use run(fn, std::tuple{iterator.get_next()})")
  auto experimental_run(F&& fn, InputIterator<T>& input_iterator) const {
    const Scope in_scope = scope();
    return run_with(fn, std::tuple{input_iterator.get_next()}, None);
  }
  template <class F>
  LOCKSTEP_DEPRECATED("use run(fn)")
  auto experimental_run(F&& fn, std::nullopt_t = std::nullopt) const {
    return run_with(fn, std::tuple<>(), None);
  }

  /// Reduces a value over replicas and, with an axis, over its elements.
  template <class T>
  auto reduce(ReduceOp reduce_op, const T& value, const Axis& axis = None,
              const std::source_location& where = std::source_location::current()) const {
    return own()->reduce(reduce_op, value, axis, where);
  }
  /// Concatenates the replicas' values along `axis`.
  template <class T>
  auto gather(const T& value, std::int64_t axis,
              const std::source_location& where = std::source_location::current()) const {
    return own()->gather(value, axis, where);
  }
  /// Makes a value for each replica by `value_fn(context)`.
  template <class F>
  auto experimental_distribute_values_from_function(F&& value_fn) const {
    return own()->values_from_function(std::forward<F>(value_fn));
  }
  /// A dataset of the rows of tensors or npy files; a list of them is stacked. `session` is ignored: there are none.
  template <class T, class Session = std::nullopt_t>
  auto experimental_make_numpy_dataset(T numpy_input, const Session& = std::nullopt) const {
    return own()->make_numpy_dataset(std::move(numpy_input));
  }

  /// Cuts each batch into one per replica.
  template <class T>
  LOCKSTEP_DEPRECATED("use experimental_distribute_dataset")
  InputIterator<T> make_dataset_iterator(const data::Dataset<T>& dataset) const {
    const auto words = own();
    lockstep::detail::require_cross_replica(core(), "make_dataset_iterator");
    return InputIterator<T>(dataset_steps(core(), dataset.stage()));
  }
  /// `input_fn(InputContext)`, called in the strategy's scope, returns a Dataset of batches for one replica each, or a
  /// function without arguments that is called for each replica in turn.
  template <class F>
  LOCKSTEP_DEPRECATED("use experimental_distribute_datasets_from_function")
  auto make_input_fn_iterator(F&& input_fn,
                              InputReplicationMode replication_mode = InputReplicationMode::PER_WORKER) const {
    return input_fn_iterator(core(), input_fn, replication_mode);
  }

  /// A copy of `config_proto` with this strategy's settings.
  LOCKSTEP_DEPRECATED("there are no sessions that could use it")
  ConfigProto update_config_proto(const ConfigProto& config_proto) const {
    return updated_config(core(), config_proto);
  }
};

using ReplicaContext = ReplicaContextOf<Strategy>;  ///< the context inside of `run`
/// None in a cross-replica context.
inline ReplicaContext get_replica_context() { return ReplicaContext(current_replica()); }
inline Strategy get_strategy() { return Strategy(lockstep::get_strategy()); }

/// One replica per device of this process. Without devices: every GPU, or `cpu:0`. Strict, as TensorFlow up to 2.2: an
/// operation that would make the components of a mirrored variable differ is an error.
class MirroredStrategy : public Strategy {
 public:
  explicit MirroredStrategy(std::nullopt_t = None, std::shared_ptr<CrossDeviceOps> cross_device_ops = {})
      : MirroredStrategy(MirroredOptions{.cross_device_ops = std::move(cross_device_ops), .strict = true}) {}
  explicit MirroredStrategy(std::vector<std::string> devices, std::shared_ptr<CrossDeviceOps> cross_device_ops = {})
      : MirroredStrategy(MirroredOptions{
            .devices = std::move(devices), .cross_device_ops = std::move(cross_device_ops), .strict = true}) {}
  /// With options that TensorFlow lacks: threads, seed; also determines strictness.
  explicit MirroredStrategy(MirroredOptions options)
      : Strategy(std::make_shared<lockstep::MirroredStrategy>(std::move(options))) {}
};

namespace experimental {
using names::CollectiveCommunication;
using MultiWorkerMirroredStrategy = MultiWorkerStrategyOf<Strategy>;  ///< training on many workers
}  // namespace experimental
}  // namespace lockstep::compat::v1
