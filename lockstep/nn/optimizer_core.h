#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/nn/module_core.h"
#include "lockstep/nn/optimizer_class.h"
#include "lockstep/nn/optimizer_settings.h"
#include "lockstep/nn/step/gradient_reducer.h"
#include "lockstep/nn/step/gradient_state.h"
#include "lockstep/nn/step/step_plan.h"
#include "lockstep/nn/step/update.h"
#include "lockstep/nn/step/updater.h"
#include "lockstep/nn/step/warn_once.h"
#include "lockstep/nn/step_observer.h"
#include "lockstep/nn/torch_optimizers.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/step_recorder.h"

// The state shared by the phases of a step. Access: OptimizerCore is changed outside of run, or while replica 0 leads;
// a ReplicaPart belongs to its replica's thread, and others read it inside meetings.
namespace lockstep::detail {

class ObservedRuns;    // nn/step_observer.cpp
class Drift;           // nn/guards/drift.h
struct DeviceNumbers;  // nn/cuda/device_numbers.h
struct LossScale;      // nn/step/loss_scale.h

/// One replica's part of an optimizer: the segments it owns, and the state of its gradients.
struct ReplicaPart {
  int index = 0;

  std::unique_ptr<torch::optim::Optimizer> inner;  ///< over the weights of `owned`
  std::vector<OwnedSegment> owned;
  bool owns_sparse = false;        ///< owns a parameter whose gradients are or once were sparse
  bool has_checked_state = false;  ///< `inner` was found to have the state required by its options

  GradientProgress progress;
  ShownGradients shown;
  std::vector<GradientKind> kinds;  ///< per parameter; the same on every replica
  StepPlan plan;                    ///< the same on every replica; from the last reduction
  ReducedGradients reduced;
  std::shared_ptr<DeviceNumbers> numbers;  ///< counts of the fused update on a GPU; null before its first step
  std::shared_ptr<LossScale> scale;        ///< scale of this step's loss, if left to the GPU

  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  int window_calls = 0;  ///< calls of minimize since the window began, including those dropped by zero_grad
};

struct OptimizerGroup {
  std::vector<int> parameters;  ///< indices into the module's parameters
  std::unique_ptr<torch::optim::OptimizerOptions> options;
};

/// Observers of an optimizer's steps, in calling order.
struct Observers {
  std::vector<std::shared_ptr<StepObserver>> all;  ///< those of nn/guards/, then the program's
  std::shared_ptr<Drift> drift;                    ///< one of them while set_digest is on
  std::shared_ptr<ObservedRuns> runs;              ///< null before the program attaches one

  auto begin() const { return all.begin(); }
  auto end() const { return all.end(); }
};

/// For clipping by norm: one sum of squares per block of every parameter, written by the block's owner.
struct BlockSums {
  std::vector<double> sums;
  std::vector<std::size_t> first;  ///< per parameter
};

/// State shared by the replicas of an optimizer.
struct OptimizerCore : std::enable_shared_from_this<OptimizerCore> {
  OptimizerCore(std::shared_ptr<ModuleCore> module, std::vector<OptimizerGroup> groups, const OptimizerClass& cls);

  std::shared_ptr<ModuleCore> module;
  OptimizerClass cls;
  std::vector<OptimizerGroup> groups;
  std::vector<int> group_of;   ///< per parameter; -1: not optimized
  std::vector<bool> is_whole;  ///< per parameter: updated as one, by one replica
  OptimizerSettings settings;
  std::vector<std::unique_ptr<ReplicaPart>> replicas;
  std::unique_ptr<GradientReducer> reducer;
  std::unique_ptr<Updater> updater;
  Observers observers;
  BlockSums blocks;
  Poison poison{*module};
  WarnOnce ended_window, equal_rates;
  const Runs& runs;  ///< the strategy's; dangling once that is gone

  /// The recorder of the captured step that is under way; null if there is none.
  StepRecorder* recorder() const { return runs.recorder; }
  /// Whether this step is being recorded rather than taken.
  bool is_recording() const { return runs.recorder != nullptr && runs.recorder->is_recording(); }
  /// Whether a run failed since `part` last dropped its gradients. Replicas that had run backward by then hold
  /// gradients of a step that never happened.
  bool has_failed_run(const ReplicaPart& part) const { return runs.failed != part.progress.failed_runs; }

  const torch::optim::OptimizerOptions& options_of(std::size_t parameter) const {
    return *groups[static_cast<std::size_t>(group_of[parameter])].options;
  }
};

/// Each parameter goes to the first group that has a prefix of its name. InvalidArgument if a group stays empty.
std::vector<OptimizerGroup> assign_groups(const ModuleCore& module, std::vector<GroupRecipe> recipes);

/// Attaches a program's observer. Outside of run.
void observe_steps(OptimizerCore& core, std::shared_ptr<StepObserver> observer);

/// The calling replica's part; throws outside of run.
ReplicaPart& part_here(OptimizerCore& core, const char* operation);

/// Throws if an option of a group has a value that no optimizer can use.
void require_valid_options(const OptimizerCore& core);
/// Copies the groups' current options to `inner`. Throws the same if they have changed and are invalid, or if an option
/// was switched on for which the state of the replica's segments lacks data.
void follow_options(const OptimizerCore& core, ReplicaPart& mine);

}  // namespace lockstep::detail
