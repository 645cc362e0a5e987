#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/guards/guards.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/warn_once.h"
#include "lockstep/nn/step/window.h"
#include "lockstep/strategy/replica_name.h"

namespace lockstep::detail {
namespace {

/// Gradients that exist before the first backward of a step come from elsewhere, and would be counted as its own.
class LeftoverGradients final : public StepObserver {
 public:
  void before_backward(const StepMoment& moment, const at::Tensor&) override {
    if (moment.part.progress.stage != GradientStage::None || warning_.is_done()) return;
    const auto k = static_cast<std::size_t>(moment.replica());
    const auto& parameters = moment.core.module->parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor& gradient = parameters[p].leaves[k].grad();
      if (moment.core.group_of[p] < 0 || !gradient.defined() || !holds_numbers(gradient)) continue;
      if (!warning_.is_first()) return;
      return say_warning(lockstep::str(
          "parameter '", parameters[p].name, "' has a gradient on ", replica_name(k),
          " before the step's backward: of a backward outside of run, or of the loss of another model. It joins this "
          "step. Call optimizer.zero_grad() inside run before minimize, and optimizer.backward(loss) instead of "
          "loss.backward() to add up gradients"));
    }
  }

 private:
  WarnOnce warning_;
};

}  // namespace

std::shared_ptr<StepObserver> make_leftover_gradients(const OptimizerCore&) {
  return std::make_shared<LeftoverGradients>();
}

}  // namespace lockstep::detail
