#include <algorithm>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/guards/guards.h"
#include "lockstep/nn/sizes_of_losses.h"
#include "lockstep/nn/step/warn_once.h"
#include "lockstep/strategy/detail/run_notes.h"

namespace lockstep::detail {
namespace {

/// The losses of one step were divided by different sizes, so their rows have different weights.
class DifferentSizes final : public StepObserver {
 public:
  /// 0 if no size was given.
  std::int64_t mark(const StepMoment&) override {
    const SizesOfLosses* const sizes = run_local<SizesOfLosses>();
    return sizes == nullptr || warning_.is_done() ? 0 : sizes->last;
  }

  void marks_differ(const StepMoment&, std::span<const std::int64_t> sizes, const char* member) override {
    const auto is_given = [](std::int64_t size) { return size != 0; };
    const auto first = std::ranges::find_if(sizes, is_given);
    if (first == sizes.end()) return;
    const auto other =
        std::find_if(first, sizes.end(), [&](std::int64_t size) { return is_given(size) && size != *first; });
    if (other == sizes.end() || !warning_.is_first()) return;
    say_warning(
        lockstep::str("average_loss was given the size ", *first, " on ", member, " ", first - sizes.begin(), " and ",
                      *other, " on ", member, " ", other - sizes.begin(),
                      ", and rows have different weights in the step. Leave the size out, or give all the same: "
                      "average_loss(losses, ls::global_rows(losses))"));
  }

 private:
  WarnOnce warning_;
};

}  // namespace

std::shared_ptr<StepObserver> make_different_sizes(const OptimizerCore&) { return std::make_shared<DifferentSizes>(); }

}  // namespace lockstep::detail
