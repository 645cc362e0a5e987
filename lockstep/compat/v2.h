#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <string_view>
#include <tuple>
#include <utility>

#include "lockstep/compat/extended.h"
#include "lockstep/compat/names.h"
#include "lockstep/compat/replica_context.h"
#include "lockstep/compat/strategy_handle.h"

/// Strategies with the names of `tf.distribute.experimental.MultiWorkerMirroredStrategy` of TensorFlow 2.0, and no others.
///
///     namespace tf = lockstep::compat::v2;
///     tf::experimental::MultiWorkerMirroredStrategy strategy;  // the cluster is that of TF_CONFIG
///     auto losses = strategy.experimental_run_v2(train_step, std::tuple{batch});
///     auto loss = strategy.reduce(tf::ReduceOp::SUM, losses, tf::None);
namespace lockstep::compat::v2 {

using names::Axis;
using names::CollectiveCommunication;
using names::DistributeOptions;
using names::has_strategy;
using names::in_cross_replica_context;
using names::InputContext;
using names::Mirrored;
using names::None;
using names::Options;
using names::PerReplica;
using names::ReduceOp;
using StrategyExtended = ExtendedHandle;  ///< the lower-level calls

/// Base of the strategies, returned by `get_strategy()`. compat/arguments.h describes how functions get their
/// arguments.
class Strategy : public StrategyHandle {
 public:
  explicit Strategy(std::shared_ptr<lockstep::Strategy> core) : StrategyHandle(std::move(core), v2_words()) {}
  explicit Strategy(lockstep::Strategy& core) : StrategyHandle(core) {}

  /// The lower-level calls.
  StrategyExtended extended() const { return StrategyExtended(core()); }

  /// Does what `run` does.
  template <class F, class Args = std::tuple<>, class Kwargs = std::nullopt_t>
  auto experimental_run_v2(F&& fn, const Args& args = {}, const Kwargs& kwargs = std::nullopt) const {
    return run_with(fn, args, kwargs);
  }
  /// The axis must be passed, even if it is None.
  template <class T>
  auto reduce(ReduceOp reduce_op, const T& value, const Axis& axis,
              const std::source_location& where = std::source_location::current()) const {
    return own()->reduce(reduce_op, value, axis, where);
  }
  /// A dataset of the rows of tensors or npy files; a list of them is stacked.
  template <class T>
  auto experimental_make_numpy_dataset(T numpy_input) const {
    return core().make_numpy_dataset(std::move(numpy_input));
  }
};

using ReplicaContext = ReplicaContextOf<Strategy>;  ///< the context inside of `run`
/// None in a cross-replica context.
inline ReplicaContext get_replica_context() { return ReplicaContext(current_replica()); }
inline Strategy get_strategy() { return Strategy(lockstep::get_strategy()); }

using MultiWorkerMirroredStrategy = MultiWorkerStrategyOf<Strategy>;  ///< training on many workers
namespace experimental {
using v2::CollectiveCommunication;
using v2::MultiWorkerMirroredStrategy;
}  // namespace experimental

}  // namespace lockstep::compat::v2
