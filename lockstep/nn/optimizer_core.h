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

// The state that the phases of a step work on. Who may touch what: OptimizerCore is changed outside of run, or while
// replica 0 leads; a ReplicaPart belongs to its replica's thread, and others read it inside meetings.
namespace lockstep::detail {

class ObservedRuns;    // nn/step_observer.cpp
class Drift;           // nn/guards/drift.h
struct DeviceNumbers;  // nn/cuda/device_numbers.h
struct LossScale;      // nn/step/loss_scale.h

/// One replica's part of an optimizer: the segments it owns, and where its gradients are.
struct ReplicaPart {
  int index = 0;

  std::unique_ptr<torch::optim::Optimizer> inner;  ///< over the weights of `owned`
  std::vector<OwnedSegment> owned;
  bool owns_sparse = false;        ///< a parameter whose gradients are, or once were, sparse
  bool has_checked_state = false;  ///< `inner` was found to have the state that its options ask for

  GradientProgress progress;
  ShownGradients shown;
  std::vector<GradientKind> kinds;  ///< per parameter; the same on every replica
  StepPlan plan;                    ///< the same on every replica; of the last reduction
  ReducedGradients reduced;
  std::shared_ptr<DeviceNumbers> numbers;  ///< what the fused update on a GPU counts; null before its first step
  std::shared_ptr<LossScale> scale;        ///< of this step's loss, where it is left to the GPU

  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  int window_calls = 0;  ///< of minimize that have not ended the window, whatever zero_grad has dropped of them
};

struct OptimizerGroup {
  std::vector<int> parameters;  ///< indices into the module's parameters
  std::unique_ptr<torch::optim::OptimizerOptions> options;
};

/// Whoever watches the steps of an optimizer, in the order in which they are called.
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

/// What the replicas of an optimizer share.
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
  const Runs& runs;  ///< of the strategy, and gone when that is

  /// Of the captured step that is under way; null: none is.
  StepRecorder* recorder() const { return runs.recorder; }
  /// Whether this step is recorded and not taken.
  bool is_recording() const { return runs.recorder != nullptr && runs.recorder->is_recording(); }
  /// Whether a run has failed since `part` last dropped its gradients. Replicas that had gone backward by then hold gradients
  /// of a step that never came.
  bool has_failed_run(const ReplicaPart& part) const { return runs.failed != part.progress.failed_runs; }

  const torch::optim::OptimizerOptions& options_of(std::size_t parameter) const {
    return *groups[static_cast<std::size_t>(group_of[parameter])].options;
  }
};

/// Each parameter goes to the first group that has a prefix of its name. InvalidArgument if a group stays empty.
std::vector<OptimizerGroup> assign_groups(const ModuleCore& module, std::vector<GroupRecipe> recipes);

/// Attaches an observer of the program's. Outside of run.
void observe_steps(OptimizerCore& core, std::shared_ptr<StepObserver> observer);

/// The calling replica's part; throws outside of run.
ReplicaPart& part_here(OptimizerCore& core, const char* operation);

/// Throws where an option of a group has a value that no optimizer can work with.
void require_valid_options(const OptimizerCore& core);
/// Gives `inner` the groups' options as they are now. Throws the same if they have changed, and where an option was switched on
/// that the state of the replica's segments has nothing for.
void follow_options(const OptimizerCore& core, ReplicaPart& mine);

}  // namespace lockstep::detail
