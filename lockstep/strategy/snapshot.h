#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"

// The state of a training run as values: to return to a step, to continue on other workers, to write a checkpoint.
//
//     const ls::Snapshot before = ls::capture(strategy, {{"model", model}, {"optimizer", optimizer}});
//     ...  // more steps
//     ls::restore(strategy, before, {{"model", model}, {"optimizer", optimizer}});  // the same steps again, bit for bit
namespace lockstep {

class Strategy;
class Variable;

/// The state between two training steps: everything a program needs to continue with the same bits. Its tensors are
/// contiguous copies on the CPU, owned by the snapshot.
struct Snapshot {
  static constexpr int kVersion = 1;         ///< number of the newest layout
  int version = kVersion;                    ///< number of this snapshot's layout
  std::map<std::string, at::Tensor> shared;  ///< one value for all replicas, by name ("model/conv1.weight")
  /// By name, then by replica_id_in_sync_group; only this process's replicas until `gather`.
  std::map<std::string, std::map<int, at::Tensor>> by_replica;
  std::map<std::string, std::string> texts;  ///< counters, options, positions: mostly JSON
};

/// An object with state to save and restore. `name` is the first part of its entries' names: "name/...".
///
/// Derive from it for state of your own. `state_of(model)` and the like (nn/state.h) return one for models, optimizers,
/// scalers, schedules, variables and distributed iterators; `capture` and `restore` below take both.
class LOCKSTEP_EXPORT Stateful {
 public:
  virtual ~Stateful() = default;
  /// Adds copies of the state, so that later training does not change the snapshot. Call between steps: throws inside
  /// of run.
  virtual void capture(Snapshot& into, const std::string& name) const = 0;
  /// All or nothing: throws as `check` does, before anything has changed. Every local replica needs its entries.
  virtual void restore(const Snapshot& from, const std::string& name) = 0;
  /// Throws if `from` cannot be restored here, with the differences. Changes nothing.
  virtual void check(const Snapshot& /*from*/, const std::string& /*name*/) const {}
};

/// Wraps an object that is a Stateful itself; it must outlive the result.
inline std::shared_ptr<Stateful> state_of(Stateful& thing) { return {std::shared_ptr<void>(), &thing}; }
/// The state of a variable: its components on all replicas.
LOCKSTEP_EXPORT std::shared_ptr<Stateful> state_of(const Variable& variable);

/// One part of the training state: a Stateful, or an object with a `state_of`, and the first part of its entries'
/// names.
struct NamedState {
  template <class T>
  NamedState(std::string part, T& thing) : name(std::move(part)), state(state_of(thing)) {}

  std::string name;                 ///< the first part of its entries' names
  std::shared_ptr<Stateful> state;  ///< captures and restores it
};

/// Captures all parts, and the replicas' random numbers as "random". Outside of run. Not a collective: entries by
/// replica cover only this process.
LOCKSTEP_EXPORT Snapshot capture(Strategy& strategy, const std::vector<NamedState>& parts);
/// Restores all parts and the replicas' random numbers, or changes nothing and throws. An earlier failed run no longer
/// counts. Outside of run; every worker must call it.
LOCKSTEP_EXPORT void restore(Strategy& strategy, const Snapshot& snapshot, const std::vector<NamedState>& parts);

/// Returns a snapshot with the entries by replica of all workers, on every worker. It can be written as a checkpoint,
/// and restored by a different number of workers with the same total number of replicas. Outside of run; every worker
/// must call it.
LOCKSTEP_EXPORT Snapshot gather(Strategy& strategy, Snapshot snapshot);

}  // namespace lockstep
