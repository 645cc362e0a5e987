#pragma once

#include <memory>
#include <string_view>

#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {

/// What Lockstep's own parts need to know of a strategy, and programs do not.
struct StrategyAccess {
  /// Expires when the strategy does: what may outlive it holds this.
  static std::weak_ptr<Strategy*> alive(const Strategy& strategy) { return strategy.alive_; }
  /// The strategy that is held so. Throws if it is gone: "a model has outlived its strategy".
  static Strategy& require_alive(const std::weak_ptr<Strategy*>& held, std::string_view what);

  /// The workers that train together; null: this process alone.
  static WorkerGroup* workers(const Strategy& strategy) { return strategy.workers_.get(); }

  /// The threads and random numbers of this process's replicas; null: replicas run on the caller's thread.
  static LocalReplicas* replicas(const Strategy& strategy) { return strategy.replicas_.get(); }

  static DeviceKinds device_kinds(const Strategy& strategy) { return strategy.device_kinds_; }

  /// The strategy's options with those of one call above them. Throws if they ask for what only a strategy can be made with.
  static CommunicationOptions options_of_call(const Strategy& strategy, const CommunicationOptions& given);

  /// See runs.h.
  static Runs& runs(const Strategy& strategy) { return *strategy.runs_; }
  /// See strategy_local.h.
  static LocalValues& locals(const Strategy& strategy) { return *strategy.locals_; }

  static std::shared_ptr<gpu::Graph> make_graph(Strategy& strategy) { return strategy.make_graph(); }
  /// Whether it has variables, or had.
  static bool has_made_variables(const Strategy& strategy);
};

}  // namespace lockstep::detail
