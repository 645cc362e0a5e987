#pragma once

#include <memory>
#include <source_location>
#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/compat/arguments.h"
#include "lockstep/compat/held_strategy.h"
#include "lockstep/compat/names.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "lockstep/strategy/multi_worker_strategy.h"

namespace lockstep::compat {

/// Shared by the strategies of all pages: TensorFlow's names for calls of one of Lockstep's strategies. Copies refer to
/// the same strategy, as in Python.
class LOCKSTEP_EXPORT StrategyHandle {
 public:
  StrategyHandle(const StrategyHandle&) = default;  // and no move, which would leave one without a strategy
  StrategyHandle& operator=(const StrategyHandle&) = default;

  /// Lockstep's own strategy, for operations without a TensorFlow name: `strategy.core().make<Net>()`,
  /// `make_optimizer`.
  lockstep::Strategy& core() const { return held_.get(); }
  bool operator==(const StrategyHandle& other) const { return held_ == other.held_; }

  /// As `lockstep::Strategy` has them.
  int num_replicas_in_sync() const { return core().num_replicas_in_sync(); }
  Scope scope() const { return own()->scope(); }

  /// Workers share files or rows as in TensorFlow, or nothing with auto-sharding off, unlike `core().distribute`.
  template <class T>
  DistributedDataset<T> experimental_distribute_dataset(const data::Dataset<T>& dataset) const {
    return own()->distribute(dataset, {.assignment = Assignment::TensorFlow});
  }
  template <class F>
  auto experimental_distribute_datasets_from_function(F&& dataset_fn) const {
    return own()->distribute_from_function(std::forward<F>(dataset_fn), {.assignment = Assignment::TensorFlow});
  }
  template <class T>
  auto experimental_local_results(const T& value) const {
    return core().local_results(value);
  }

 protected:
  StrategyHandle(std::shared_ptr<lockstep::Strategy> core, Vocabulary words);
  /// A handle that does not keep its strategy alive, and throws once it is destroyed.
  explicit StrategyHandle(lockstep::Strategy& core) : held_(core) {}

  SpeakingStrategy own() const { return SpeakingStrategy(core()); }

  template <class F, class Args, class Kwargs>
  auto run_with(F& fn, const Args& args, const Kwargs& kwargs) const {
    return call_with([&](const auto&... each) { return own()->run(fn, each...); }, args, kwargs);
  }

 private:
  std::shared_ptr<lockstep::Strategy> owned_;
  HeldStrategy held_;
};

/// The replicas of several processes; the cluster comes from TF_CONFIG unless a resolver is given. Not strict: strict
/// strategies of several workers reject ONLY_FIRST_REPLICA, which TensorFlow accepts.
template <class Base>
class MultiWorkerStrategyOf : public Base {
 public:
  using Communication = names::CollectiveCommunication;  ///< how workers communicate
  explicit MultiWorkerStrategyOf(Communication communication = Communication::AUTO,
                                 std::shared_ptr<const ClusterResolver> cluster_resolver = {})
      : MultiWorkerStrategyOf(
            MultiWorkerOptions{.cluster_resolver = std::move(cluster_resolver),
                               .communication = {.timeout_seconds = {}, .implementation = communication}}) {}
  /// With options that TensorFlow lacks: devices, threads, seed, strictness.
  explicit MultiWorkerStrategyOf(MultiWorkerOptions options)
      : Base(std::make_shared<lockstep::MultiWorkerMirroredStrategy>(std::move(options))) {}
};

namespace names {

/// Opens this strategy's scope on the calling thread, until it is called again. Another one replaces it, None leaves
/// it; inside a scope it is FailedPrecondition.
LOCKSTEP_EXPORT void experimental_set_strategy(const StrategyHandle& strategy);
LOCKSTEP_EXPORT void experimental_set_strategy(std::nullopt_t none);

}  // namespace names

}  // namespace lockstep::compat
