#include "lockstep/nn/step/recording.h"

#include <torch/optim/sgd.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/guards/drift.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/loss_scale.h"
#include "lockstep/nn/step/take_step.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/step_recorder.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

StepRecorder* recorder_of(const ModuleCore& module) { return StrategyAccess::runs(module.strategy()).recorder; }

/// The properties of a replica's model that a recorded graph depends on: a change invalidates it.
struct RecordedModel {
  RecordedModel(const ModuleCore& module, std::size_t replica) : k(replica), modes(module.modes_of(k)) {
    for (const auto& buffer : module.buffers_of(k)) {
      const at::Tensor& tensor = buffer.value();
      if (tensor.defined() && tensor.has_storage()) buffers.emplace_back(tensor, tensor.const_data_ptr());
    }
  }

  std::string reason_against(const ModuleCore& module) const {
    if (module.modes_of(k) != modes) return "what is trained, or the model's training mode, was changed";
    for (const auto& parameter : module.parameters()) {
      if (parameter.has_moved(k)) return "a parameter has moved to other memory";
    }
    for (const auto& [buffer, address] : buffers) {
      if (buffer.const_data_ptr() != address) return "a buffer has moved to other memory";
    }
    return {};
  }

  std::size_t k;
  std::uint64_t modes;
  std::vector<std::pair<at::Tensor, const void*>> buffers;  ///< the buffers of the replica's module, and their
                                                            ///< addresses
};

/// The same for its part of an optimizer.
struct Recorded {
  Recorded(const OptimizerCore& core, const ReplicaPart& mine)
      : settings(core.settings), numbers(mine.numbers), scale(mine.scale) {
    for (const OptimizerGroup& group : core.groups) have_momentum.push_back(has_momentum(group));
  }

  static bool has_momentum(const OptimizerGroup& group) {
    const auto* const sgd = dynamic_cast<const torch::optim::SGDOptions*>(group.options.get());
    return sgd != nullptr && sgd->momentum() != 0;
  }

  std::string reason_against(const OptimizerCore& core, const ReplicaPart& mine) const {
    const auto k = static_cast<std::size_t>(mine.index);
    if (!(settings == core.settings)) return "the optimizer's settings were changed";
    if (!has_device_update(core)) return "the optimizer's options were changed";
    for (std::size_t g = 0; g < have_momentum.size(); ++g) {
      if (have_momentum[g] != has_momentum(core.groups[g])) return "momentum was switched on or off";
    }
    if (mine.numbers != numbers) return "the optimizer's state was loaded";
    if (mine.progress.stage != GradientStage::None) return "gradients wait for a step";
    const auto& parameters = core.module->parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].leaves[k].grad().defined()) return "a parameter has a gradient before the step";
    }
    return {};
  }

  OptimizerSettings settings;
  std::shared_ptr<DeviceNumbers> numbers;
  std::shared_ptr<LossScale> scale;
  std::vector<bool> have_momentum;  ///< per group
};

void count_replay(OptimizerCore& core, ReplicaPart& mine, const std::vector<GradientKind>& kinds, LossScale* scale) {
  count_step(core, mine, kinds);
  for (const auto& observer : core.observers) observer->updated({core, mine});
  if (scale != nullptr) scale->is_ahead = true;
  if (!mine.numbers) return;  // it owns nothing
  note_replay_on_device(core, mine, scale != nullptr);
  receive_check(core, mine);
  send_check(core, mine);
}

}  // namespace

void note_model_of_step(const ModuleCore& module, std::size_t k, const std::weak_ptr<const void>& alive) {
  StepRecorder* const recorder = recorder_of(module);
  if (recorder == nullptr || !recorder->is_first_use(static_cast<int>(k), &module)) return;
  recorder->before_replay(static_cast<int>(k), [&module, alive, recorded = RecordedModel(module, k)] {
    return alive.expired() ? std::string("a model that it uses is gone") : recorded.reason_against(module);
  });
}

bool is_recording(const ModuleCore& module) {
  const StepRecorder* const recorder = recorder_of(module);
  return recorder != nullptr && recorder->is_recording();
}

void refuse_if_recording(const OptimizerCore& core, const char* why) {
  if (core.is_recording()) throw CannotRecord(why);
}

void refuse_unrecordable(const OptimizerCore& core) {
  if (!has_device_update(core))
    throw CannotRecord("only SGD, Adam and AdamW without amsgrad keep all that a step needs on the GPU");
  if (core.settings.accumulate > 1) throw CannotRecord("set_accumulate is above 1, so that calls differ");
}

void leave_to_recorder(OptimizerCore& core, ReplicaPart& mine) {
  StepRecorder& recorder = *core.recorder();
  note_model_of_step(*core.module, static_cast<std::size_t>(mine.index), core.module);
  if (has_device_update(core)) {
    recorder.before_replay(mine.index, [held = core.shared_from_this(), &mine, recorded = Recorded(core, mine)] {
      held->poison.require_clean("a captured step");
      held->observers.drift->settle();
      require_valid_options(*held);
      std::string reason = recorded.reason_against(*held, mine);
      if (!reason.empty()) return reason;
      if (mine.numbers) send_options_to_device(*held, mine);
      if (recorded.scale) send_scale(*recorded.scale, held->module->strategy().replica_context(mine.index).device());
      return reason;
    });
  }
  if (!recorder.is_recording()) return;
  recorder.after_replay(mine.index, [held = core.shared_from_this(), &mine, kinds = mine.kinds, scale = mine.scale] {
    count_replay(*held, mine, kinds, scale.get());
  });
}

}  // namespace lockstep::detail
