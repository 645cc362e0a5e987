#include "lockstep/nn/step_observer.h"

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/strategy_access.h"

namespace lockstep {

/// Forwards the moments of the strategy's runs to the program's observers of an optimizer.
class detail::ObservedRuns final : public RunWatcher {
 public:
  void prepare() const override {}
  void begin(std::size_t k) const override {
    for (const auto& observer : observers) observer->run_begins(static_cast<int>(k));
  }
  void remember(std::size_t) const override {}
  void require_untouched(std::size_t) const override {}
  void end_of_merge() const override {}
  void end() const override {
    for (const auto& observer : observers) observer->run_ended();
  }

  std::vector<std::shared_ptr<StepObserver>> observers;
};

void detail::observe_steps(OptimizerCore& core, std::shared_ptr<StepObserver> observer) {
  if (!observer)
    throw InvalidArgument(errors::kBadOption, {.what = "an observer must be an object, got null", .where = "observe"});
  auto& [all, drift, runs] = core.observers;
  if (!runs) {
    runs = std::make_shared<ObservedRuns>();
    StrategyAccess::runs(core.module->strategy()).watch(runs);
  }
  runs->observers.push_back(observer);
  all.push_back(std::move(observer));
}

bool StepMoment::is_of(const MirroredOptimizerBase& optimizer) const { return optimizer.core().get() == &core; }
int StepMoment::replica() const { return part.index; }
std::int64_t StepMoment::steps() const { return part.steps; }

void StepObserver::marks_differ(const StepMoment& moment, std::span<const std::int64_t> marks, const char* member) {
  std::string seen;
  for (std::size_t i = 0; i < marks.size(); ++i) seen += str(i == 0 ? "" : ", ", member, " ", i, ": ", marks[i]);
  throw FailedPrecondition(errors::kDifferentCollective,
                           {.what = str(member, "s differ in what an observer of the optimizer compares"),
                            .where = moment.call,
                            .seen = std::move(seen),
                            .help = "StepObserver::mark must return the same on every replica and worker"});
}

}  // namespace lockstep
