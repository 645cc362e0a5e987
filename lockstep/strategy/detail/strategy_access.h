#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

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

  static bool has_gpus(const Strategy& strategy) { return strategy.has_gpus_; }
  /// Whether it has replicas on CPUs and on GPUs.
  static bool is_mixed(const Strategy& strategy) { return strategy.is_mixed_; }

  /// One client drives all replicas, as in TensorFlow 1.11, however many workers stand for it: OnlyFirstReplica is the
  /// first of all, not of each worker, and an OnRead variable without aggregation is read as a sum.
  static void set_one_client(Strategy& strategy, void* client) { strategy.one_client_ = client; }
  static void* one_client(const Strategy& strategy) { return strategy.one_client_; }  ///< null: there is none
  static bool is_client_of_several_workers(const Strategy& strategy) {
    return strategy.one_client_ != nullptr && strategy.num_workers() > 1;
  }

  /// See strategy_words.h.
  static void set_words(Strategy& strategy, Vocabulary words) { strategy.words_ = words; }
  static Vocabulary words(const Strategy& strategy) { return strategy.words_; }

  /// The strategy's options with those of one call above them. Throws if they ask for what only a strategy can be made with.
  static CommunicationOptions options_of_call(const Strategy& strategy, const CommunicationOptions& given);

  /// How many runs have thrown. What keeps something from one run to the next sees here that a run was cut short.
  static std::uint64_t failed_runs(const Strategy& strategy) { return strategy.failed_runs_; }

  static void set_last_failure(Strategy& strategy, std::optional<RunFailure> failure) {
    strategy.last_failure_ = std::move(failure);
  }

  /// Whether another thread is inside run: what it works on cannot be looked at from here.
  static bool runs_elsewhere(const Strategy& strategy);
  /// How many runs have begun, not counting those in merge functions.
  static std::uint64_t runs_begun(const Strategy& strategy) { return strategy.runs_begun_.load(); }

  /// From the next run on, `watcher` looks at what replicas do, as long as it lives.
  static void watch(Strategy& strategy, std::weak_ptr<const RunWatcher> watcher) {
    strategy.watchers_.push_back(std::move(watcher));
  }

  /// Of the captured step whose run goes on; null: none does.
  static StepRecorder* recorder(const Strategy& strategy) { return strategy.recorder_; }
  static void set_recorder(Strategy& strategy, StepRecorder* recorder) { strategy.recorder_ = recorder; }
  static std::shared_ptr<gpu::Graph> make_graph(Strategy& strategy) { return strategy.make_graph(); }

  /// Whether it has variables or models, or had.
  static bool has_made_anything(const Strategy& strategy);
  static void note_model(Strategy& strategy) { strategy.has_made_models_ = true; }

  /// Optimizers are numbered, so that workers can tell whose gradients they exchange.
  static int next_optimizer(Strategy& strategy) { return strategy.optimizers_made_++; }
};

}  // namespace lockstep::detail
