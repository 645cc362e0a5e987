#include <algorithm>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/guards/guards.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/warn_once.h"

namespace lockstep::detail {
namespace {

class UnreachedParameters final : public StepObserver {
 public:
  void updated(const StepMoment& moment) override {
    const auto is_reached = [](GradientKind kind) { return kind != GradientKind::None; };
    if (moment.replica() != 0 || std::ranges::any_of(moment.part.kinds, is_reached) || !warning_.is_first()) return;
    const auto is_trained = [](int group) { return group >= 0; };
    const auto first = std::ranges::find_if(moment.core.group_of, is_trained) - moment.core.group_of.begin();
    say_warning(str("the loss reaches none of the optimizer's parameters ('",
                    moment.core.module->parameters()[static_cast<std::size_t>(first)].name, "' is the first): step ",
                    moment.steps(),
                    " has updated nothing. Compute the loss with the model that the optimizer was made for, and freeze "
                    "only what is not to be trained"));
  }

 private:
  WarnOnce warning_;
};

}  // namespace

std::shared_ptr<StepObserver> make_unreached_parameters(const OptimizerCore&) {
  return std::make_shared<UnreachedParameters>();
}

}  // namespace lockstep::detail
