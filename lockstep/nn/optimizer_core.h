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
#include "lockstep/nn/step/gradient_sample.h"
#include "lockstep/nn/step/gradient_state.h"
#include "lockstep/nn/step/said_once.h"
#include "lockstep/nn/step/sent_digests.h"
#include "lockstep/nn/step/update.h"
#include "lockstep/nn/torch_optimizers.h"

// The state that the phases of a step work on. Who may touch what: OptimizerCore is changed outside of run, or while
// replica 0 leads; a ReplicaPart belongs to its replica's thread, and others read it inside meetings.
namespace lockstep::detail {

struct DeviceNumbers;  // nn/cuda/device_numbers.h
struct LossScale;      // nn/step/loss_scale.h

/// One replica's part of an optimizer: the segments it owns, and where its gradients are.
struct ReplicaPart {
  int index = 0;

  std::unique_ptr<torch::optim::Optimizer> inner;  ///< over the weights of `owned`
  std::vector<OwnedSegment> owned;
  std::int64_t divisor = 1;            ///< of the sums of `OwnedSegment::parts`
  bool updates_on_one_thread = false;  ///< 16-bit weights: LibTorch's bits would depend on the number of threads
  bool owns_sparse = false;            ///< a parameter whose gradients are, or once were, sparse

  GradientProgress progress;
  ShownGradients shown;
  std::vector<GradientKind> kinds;  ///< per parameter; the same on every replica
  NotFiniteSum not_finite;
  std::shared_ptr<DeviceNumbers> numbers;  ///< what the fused update on a GPU counts; null before its first step
  std::shared_ptr<LossScale> scale;        ///< of this step's loss, where it is left to the GPU
  bool checks_on_device = false;           ///< the sums of this step were checked there: the update knows
  std::vector<at::Tensor> pulled;          ///< what `parts` and sums have of other GPUs' gradients
  std::vector<GradientSample> samples;     ///< per parameter; empty unless gradients wait for the program's next call

  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  std::int64_t digest_calls = 0;       ///< steps on a GPU while digests are compared, skipped ones too
  std::optional<SentDigests> digests;  ///< that have not been compared yet
  int window_calls = 0;         ///< of minimize that have not ended the window, whatever zero_grad has dropped of them
  int steps_beside_window = 0;  ///< by parts, of one backward each, since minimize was last called
  std::int64_t module_looks = 0;           ///< how often the module was shown to the others
  std::vector<OptionalState> asked_state;  ///< per group: what `owned` was last found to have
  std::size_t registered = 0;              ///< ModuleCore::registered_in when the module was last found unchanged
};

struct OptimizerGroup {
  std::vector<int> parameters;  ///< indices into the module's parameters
  std::unique_ptr<torch::optim::OptimizerOptions> options;
};

/// What the replicas of an optimizer share.
struct OptimizerCore : std::enable_shared_from_this<OptimizerCore> {
  OptimizerCore(std::shared_ptr<ModuleCore> module, std::vector<OptimizerGroup> groups, const OptimizerClass& cls);

  std::shared_ptr<ModuleCore> module;
  OptimizerClass cls;
  std::vector<OptimizerGroup> groups;
  std::vector<int> group_of;   ///< per parameter; -1: not optimized
  std::vector<bool> is_whole;  ///< per parameter: updated as one, by one replica
  bool on_device = false;      ///< all weights are on GPUs
  OptimizerSettings settings;
  std::vector<std::unique_ptr<ReplicaPart>> replicas;
  std::unique_ptr<GradientReducer> reducer;
  Poison poison{*module};
  SaidOnce said;

  // Clipping by norm: one sum of squares per block of every parameter, written by the block's owner.
  std::vector<double> block_sums;
  std::vector<std::size_t> first_block;  ///< per parameter
  // The same on GPUs, where clipping does not wait for them; and one number per replica, which of its sums is not finite.
  // One of each for each copy of the weights: a replica writes what is its own to all of them.
  std::vector<at::Tensor> device_block_sums;
  std::vector<at::Tensor> device_bad_sums;
  const at::Tensor& block_sums_for(const ReplicaPart& mine) const { return device_block_sums[copy_of(mine)]; }
  const at::Tensor& bad_sums_for(const ReplicaPart& mine) const { return device_bad_sums[copy_of(mine)]; }
  std::size_t copy_of(const ReplicaPart& mine) const {
    return module->copies().of_replica[static_cast<std::size_t>(mine.index)];
  }

  const torch::optim::OptimizerOptions& options_of(std::size_t parameter) const {
    return *groups[static_cast<std::size_t>(group_of[parameter])].options;
  }
};

/// Each parameter goes to the first group that has a prefix of its name. InvalidArgument if a group stays empty.
std::vector<OptimizerGroup> assign_groups(const ModuleCore& module, std::vector<GroupRecipe> recipes);

/// Whether sum and update can be one pass over memory, as the options are now.
bool has_fused_update(const OptimizerCore& core);

/// The calling replica's part; throws outside of run.
ReplicaPart& part_here(OptimizerCore& core, const char* operation);

/// Throws where an option of a group has a value that no optimizer can work with.
void require_valid_options(const OptimizerCore& core);
/// The same, and where an option was switched on that the state of a replica's segments has nothing for.
void require_valid_options(const OptimizerCore& core, ReplicaPart& mine);

}  // namespace lockstep::detail
