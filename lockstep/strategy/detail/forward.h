#pragma once

#include <type_traits>

#include "lockstep/values/distributed_fwd.h"

// Names of upper floors that strategy.h declares methods with; each method is defined where its types are.
namespace lockstep {

class CrossDeviceOps;    // strategy/cross_device_ops.h
class StrategyExtended;  // strategy/extended.h
struct InputOptions;     // data/distribute/input_options.h
struct ModuleOptions;    // nn/module_options.h
template <class Opt>
class MirroredOptimizer;  // nn/mirrored_optimizer.h
template <class M>
class MirroredModule;  // nn/mirrored_module.h
template <class Options>
struct ParameterGroup;
template <class Opt>
struct OptimizerOptionsOf;

template <class T>
class DistributedDataset;  // data/distribute/distributed_dataset.h
struct DistributedSpec;    // data/distribute/signature.h

namespace data {
template <class T>
class Dataset;  // data/dataset.h
}  // namespace data

namespace local {
class Seat;  // comm/local/replica_team.h
struct ReplicaFailure;
}  // namespace local

namespace detail {

template <class T>
inline constexpr bool is_per_replica_v = false;
template <class T>
inline constexpr bool is_per_replica_v<PerReplica<T>> = true;
template <class T>
inline constexpr bool is_mirrored_v = false;
template <class T>
inline constexpr bool is_mirrored_v<Mirrored<T>> = true;

template <class T>
inline constexpr bool is_mirrored_module_v = false;
template <class M>
inline constexpr bool is_mirrored_module_v<MirroredModule<M>> = true;

template <class T>
void take_dataset(const data::Dataset<T>&);
template <class Given>
concept IsDataset = requires(const Given& given) {
  take_dataset(given);
};

/// For a static_assert that says what is wrong with a call, and what such a call returns: with it in the place of the
/// real result the compiler finds no second error.
template <class...>
inline constexpr bool never = false;
struct AfterCompileError {
  template <class T>
  operator T() const;
};

template <class T>
inline constexpr bool is_signature_v = std::is_same_v<std::remove_cvref_t<T>, DistributedSpec>;

/// A module, a holder of one or a pointer to one.
template <class T>
concept BuiltModule = requires {
  typename T::ContainedType;
}
|| requires(T& module) { module.named_parameters(); }
|| requires(T& pointer) { pointer->named_parameters(); };

/// A function that builds a module, as opposed to a module class or holder.
template <class F>
concept ModuleFactory = !BuiltModule<F> && std::is_invocable_v<F&>;

/// Whether `make(factory)` or `make(factory, options)` is meant.
template <class F, class... Rest>
inline constexpr bool is_factory_call_v = ModuleFactory<F> && sizeof...(Rest) <= 1 &&
                                          (std::is_same_v<Rest, ModuleOptions> && ...);

template <class...>
inline constexpr bool begins_with_options_v = false;
template <class First, class... Rest>
inline constexpr bool begins_with_options_v<First, Rest...> = std::is_same_v<std::decay_t<First>, ModuleOptions>;

}  // namespace detail
}  // namespace lockstep
