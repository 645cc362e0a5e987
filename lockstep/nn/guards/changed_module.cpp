#include <algorithm>
#include <vector>

#include "lockstep/nn/guards/guards.h"
#include "lockstep/nn/optimizer_core.h"

namespace lockstep::detail {
namespace {

/// A replica has other parameters than `make` built: the step would train unused ones.
class ChangedModule final : public StepObserver {
 public:
  explicit ChangedModule(const OptimizerCore& core) : looks_(core.replicas.size()) {}

  void gradients_shown(const StepMoment& moment) override {
    const auto k = static_cast<std::size_t>(moment.replica());
    const ModuleCore& module = *moment.core.module;
    for (std::size_t p = 0; p < moment.core.group_of.size(); ++p) {
      if (moment.core.group_of[p] < 0) continue;
      // A parameter that had a gradient and has none now was replaced, or was just not used this time.
      const bool is_missing = moment.part.kinds[p] != GradientKind::None && !moment.part.shown.gradients[p].defined();
      if (!is_missing && !module.parameters()[p].has_moved(k)) continue;
      module.require_unchanged();
      break;
    }
    // Counting costs some microseconds, and parts are usually added early.
    Look& mine = looks_[k];
    const std::int64_t before = mine.count++;
    const bool look = before < 100 || before % 16 == 0;
    mine.is_suspect = before == 0 || (look && module.registered_in(k) != mine.registered);
  }

  void agreed(const StepMoment& moment) override {
    if (std::ranges::none_of(looks_, &Look::is_suspect)) return;
    moment.core.module->require_unchanged();
    const auto k = static_cast<std::size_t>(moment.replica());
    looks_[k].registered = moment.core.module->registered_in(k);
  }

 private:
  struct Look {
    std::int64_t count = 0;
    std::size_t registered = 0;  ///< ModuleCore::registered_in when the module was last found unchanged
    bool is_suspect = false;     ///< in this step
  };
  std::vector<Look> looks_;  ///< per replica
};

}  // namespace

std::shared_ptr<StepObserver> make_changed_module(const OptimizerCore& core) {
  return std::make_shared<ChangedModule>(core);
}

}  // namespace lockstep::detail
