#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/logging.h"
#include "lockstep/nn/guards/guards.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/warn_once.h"

namespace lockstep::detail {
namespace {

/// Settings of minimize in a program that takes steps in parts.
class UnusedSettings final : public StepObserver {
 public:
  explicit UnusedSettings(const OptimizerCore& core) : counts_(core.replicas.size()) {}

  void gradients_wait(const StepMoment& moment) override {
    if (!moment.part.progress.is_reduced()) ++of(moment).backwards;
  }
  void dropped(const StepMoment& moment) override { of(moment).backwards = 0; }

  void gradients_taken(const StepMoment& moment) override {
    const std::string_view call = moment.call;
    if (call == "reduce_gradients") look_for_window(moment);
    if (call == "step") look_for_clipping(moment);
  }

 private:
  struct Counts {
    int backwards = 0;           ///< in this step, with gradients waiting
    std::int64_t alone_at = -2;  ///< updates made when gradients of a single backward were last reduced
  };
  Counts& of(const StepMoment& moment) { return counts_[static_cast<std::size_t>(moment.replica())]; }

  void look_for_window(const StepMoment& moment) {
    const bool is_alone = moment.part.window_calls == 0 && of(moment).backwards <= 1;
    if (moment.core.settings.accumulate <= 1 || !is_alone) return;
    // A single one may be the last batch of an epoch; two in a row do not end windows.
    const std::int64_t before = std::exchange(of(moment).alone_at, moment.steps());
    const bool is_second = moment.steps() == before || moment.steps() == before + 1;
    if (!is_second || !window_.is_first()) return;
    say_warning(
        "set_accumulate applies only to minimize: reduce_gradients and step update the weights at every call. Call "
        "backward several times before reduce_gradients, or minimize");
  }

  void look_for_clipping(const StepMoment& moment) {
    const OptimizerSettings& settings = moment.core.settings;
    if (!settings.clip_global_norm && !settings.clip_value) return;
    if (moment.part.progress.clip_mark != 0 || !clipping_.is_first()) return;
    say_warning(
        "set_clip_global_norm and set_clip_value apply only to minimize: these gradients are not clipped. Call "
        "clip_global_norm(max_norm) or clip_value(limit) between reduce_gradients and step");
  }

  std::vector<Counts> counts_;  ///< per replica
  WarnOnce window_, clipping_;
};

}  // namespace

std::shared_ptr<StepObserver> make_unused_settings(const OptimizerCore& core) {
  return std::make_shared<UnusedSettings>(core);
}

}  // namespace lockstep::detail
