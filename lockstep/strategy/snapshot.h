#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"

// The state of a training as values: to go back to a step, to continue on other workers, to write a checkpoint.
//
//     const ls::Snapshot before = ls::capture(strategy, {{"model", model}, {"optimizer", optimizer}});
//     ...  // more steps
//     ls::restore(strategy, before, {{"model", model}, {"optimizer", optimizer}});  // the same steps again, bit for bit
namespace lockstep {

class Strategy;
class Variable;

/// The state of a training between two steps: what a program needs to continue with the same bits. Its tensors are contiguous
/// copies on the CPU that belong to the snapshot.
struct Snapshot {
  static constexpr int kVersion = 1;         ///< number of the newest layout
  int version = kVersion;                    ///< number of this snapshot's layout
  std::map<std::string, at::Tensor> shared;  ///< one value for all replicas, by name ("model/conv1.weight")
  /// By name, then replica_id_in_sync_group: those of this process until gathered.
  std::map<std::string, std::map<int, at::Tensor>> by_replica;
  std::map<std::string, std::string> texts;  ///< counters, options, positions: mostly JSON
};

/// Something that has state to keep. `name` is the first part of its entries' names: "name/...".
///
/// Derive from it for state of your own. Models, optimizers, scalers, schedules, variables and distributed iterators are handed
/// out by `state_of(model)` and the like (nn/state.h); `capture` and `restore` below take both.
class LOCKSTEP_EXPORT Stateful {
 public:
  virtual ~Stateful() = default;
  /// Adds copies of the state: the snapshot does not change when training continues. Between steps only: throws inside of run.
  virtual void capture(Snapshot& into, const std::string& name) const = 0;
  /// All or nothing: throws what `check` throws before anything has changed. Every local replica needs its entries.
  virtual void restore(const Snapshot& from, const std::string& name) = 0;
  /// Throws, with what differs, if `from` cannot be restored here. Changes nothing.
  virtual void check(const Snapshot& /*from*/, const std::string& /*name*/) const {}
};

/// The Stateful of something that is one. It must outlive the result.
inline std::shared_ptr<Stateful> state_of(Stateful& thing) { return {std::shared_ptr<void>(), &thing}; }
/// The components of a variable on all replicas.
LOCKSTEP_EXPORT std::shared_ptr<Stateful> state_of(const Variable& variable);

/// A part of a training: a Stateful, or something with a `state_of`, and the first part of its entries' names.
struct NamedState {
  template <class T>
  NamedState(std::string part, T& thing) : name(std::move(part)), state(state_of(thing)) {}

  std::string name;                 ///< the first part of its entries' names
  std::shared_ptr<Stateful> state;  ///< what captures and restores it
};

/// Captures all parts, and the replicas' random numbers as "random". Outside of run. No collective: entries by replica are those
/// of this process.
LOCKSTEP_EXPORT Snapshot capture(Strategy& strategy, const std::vector<NamedState>& parts);
/// Restores all parts and the replicas' random numbers, or changes nothing and throws. A run that failed before no longer counts.
/// Outside of run; every worker must call it.
LOCKSTEP_EXPORT void restore(Strategy& strategy, const Snapshot& snapshot, const std::vector<NamedState>& parts);

/// Brings the entries by replica of all workers together, on every worker: what a checkpoint writes, and what can be restored
/// by another number of workers with as many replicas in all. Outside of run; every worker must call it.
LOCKSTEP_EXPORT Snapshot gather(Strategy& strategy, Snapshot snapshot);

}  // namespace lockstep
