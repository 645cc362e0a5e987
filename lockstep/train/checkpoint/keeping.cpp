#include "lockstep/train/checkpoint/keeping.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::train {

void require_valid(const KeepOptions& options) {
  const auto refuse = [](const char* name, const char* least, int got) {
    throw InvalidArgument(errors::kBadOption, {.what = str(name, " must be ", least, ", got ", got),
                                               .where = "options of checkpoints",
                                               .help = "set it to the number of checkpoints, or to 0 for all"});
  };
  if (options.keep < 0) refuse("keep", ">= 0", options.keep);
  if (options.keep_best < 1) refuse("keep_best", ">= 1", options.keep_best);
  if (options.keep_optimizer < 0 || options.keep_optimizer == 1)
    refuse("keep_optimizer", ">= 2, or 0 for all", options.keep_optimizer);
}

namespace detail {

KeepPlan plan_keeping(const std::vector<KeptCheckpoint>& all, const KeepOptions& options) {
  std::vector<KeptCheckpoint> by_score;
  for (const KeptCheckpoint& checkpoint : all) {
    if (checkpoint.score && !std::isnan(*checkpoint.score)) by_score.push_back(checkpoint);
  }
  // Of equal ones the older is better, as everywhere in training: a newer one has to improve.
  std::ranges::sort(by_score, {}, [&](const KeptCheckpoint& each) {
    return std::pair(options.highest_is_best ? -*each.score : *each.score, each.step);
  });
  if (!options.best_metric.empty())
    by_score.resize(std::min(by_score.size(), static_cast<std::size_t>(options.keep_best)));
  else
    by_score.clear();

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
