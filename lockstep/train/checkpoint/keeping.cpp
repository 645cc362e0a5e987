#include "lockstep/train/checkpoint/keeping.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/train/require_option.h"

namespace lockstep::train {

void require_valid(const KeepOptions& options) {
  const auto require = [](bool holds, const char* name, const char* least, int got) {
    detail::require_option(holds, "options of checkpoints", str(name, " must be ", least, ", got ", got),
                           "set it to the number of checkpoints, or to 0 for all");
  };
  require(options.keep >= 0, "keep", ">= 0", options.keep);
  require(options.keep_best >= 1, "keep_best", ">= 1", options.keep_best);
  require(options.keep_optimizer == 0 || options.keep_optimizer >= 2, "keep_optimizer", ">= 2, or 0 for all",
          options.keep_optimizer);
}

namespace detail {

KeepPlan plan_keeping(const std::vector<KeptCheckpoint>& all, const KeepOptions& options) {
  std::vector<KeptCheckpoint> by_score;
  for (const KeptCheckpoint& checkpoint : all) {
    const bool has_score = checkpoint.score && !std::isnan(*checkpoint.score);
    if (has_score && !options.best_metric.empty()) by_score.push_back(checkpoint);
  }
  // Of equal ones the older is better, as everywhere in training: a newer one has to improve.
  std::ranges::sort(by_score, {}, [&](const KeptCheckpoint& each) {
    return std::pair(options.highest_is_best ? -*each.score : *each.score, each.step);
  });
  by_score.resize(std::min(by_score.size(), static_cast<std::size_t>(options.keep_best)));

  KeepPlan plan;
  const auto is_among_newest = [&](std::size_t i, int count) {
    return count == 0 || i + std::size_t(count) >= all.size();
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool is_best = std::ranges::count(by_score, all[i].step, &KeptCheckpoint::step) != 0;
    if (!is_among_newest(i, options.keep) && !is_best) {
      plan.remove.push_back(all[i].step);
    } else if (!is_among_newest(i, options.keep_optimizer)) {
      plan.leave_optimizer.push_back(all[i].step);
    }
  }
  return plan;
}

}  // namespace detail

bool is_due(const SaveInterval& interval, std::int64_t last_step, std::int64_t step, double last_seconds,
            double seconds) {
  if (step <= last_step) return false;
  if (interval.steps > 0 && step / interval.steps > last_step / interval.steps) return true;
  return interval.seconds > 0 && seconds - last_seconds >= interval.seconds;
}

}  // namespace lockstep::train
