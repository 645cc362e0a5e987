#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_local.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/strategy/detail/strategy_access.h"

namespace lockstep {

void OptimizerCore::set_reduce_op(ReduceOp op) {
  detail::require_outside_of_run("set_reduce_op");
  reduce_op_ = op;
}

void OptimizerCore::set_not_finite(NotFinite policy) {
  detail::require_outside_of_run("set_not_finite");
  not_finite_ = policy;
}

void OptimizerCore::require_no_open_window(const char* operation) const {
  for (const auto& local : locals_) {
    if (local->accumulated == 0) continue;
    throw_use(
        str("gradients of ", counted(local->accumulated, "call"), " of minimize wait for the rest of their window"),
        str("call it between updates: after ", counted(std::max(1, accumulate_ - local->accumulated), "more call"),
            " of minimize, or end the window by reduce_gradients() and step(), or by zero_grad(), inside run"),
        operation);
  }
}

void OptimizerCore::zero_grad() {
  Local& local = local_here("zero_grad");
  // After a failed run it is what one is asked to do.
  const bool in_window =
      local.accumulated > 0 && detail::StrategyAccess::failed_runs(module_->strategy()) == local.failed_runs;
  if (in_window && local.replica == 0 && !std::exchange(local.has_warned_of_window, true)) {
    log_warning(str(
        "zero_grad() has ended an accumulate window: the gradients of ", counted(local.accumulated, "call"),
        " of minimize out of ", accumulate_,
        " are dropped without an update. minimize forgets gradients by itself after each update; leave zero_grad() out"));
  }
  drop_gradients(local);
}

void OptimizerCore::warn_of_unreached(Local& local) {
  if (local.replica != 0 || std::exchange(local.has_warned_of_unreached, true)) return;
  const auto& parameters = module_->parameters();
  const auto first = std::find_if(group_of_.begin(), group_of_.end(), [](int group) { return group >= 0; });
  const std::string name =
      first == group_of_.end() ? "" : parameters[static_cast<std::size_t>(first - group_of_.begin())].name;
  log_warning(str(
      "the loss reaches none of the optimizer's parameters ('", name, "' is the first): step ", local.steps,
      " has updated nothing. Compute it with the model the optimizer was made for, and freeze only what is not to be trained"));
}

void OptimizerCore::start_anew_at(std::int64_t steps) {
  for (auto& local : locals_) {
    drop_gradients(*local);
    local->steps = steps;
  }
}

void OptimizerCore::set_clip_global_norm(std::optional<double> max_norm) {
  detail::require_outside_of_run("set_clip_global_norm");
  if (max_norm && !(*max_norm > 0))
    throw InvalidArgument(errors::kBadOption, {.what = str("the largest norm must be positive, not ", *max_norm)});
  max_norm_ = max_norm;
}

void OptimizerCore::set_clip_value(std::optional<double> limit) {
  detail::require_outside_of_run("set_clip_value");
  if (limit && !(*limit > 0))
    throw InvalidArgument(errors::kBadOption, {.what = str("the largest value must be positive, not ", *limit)});
  value_limit_ = limit;
}

void OptimizerCore::set_accumulate(int calls) {
  detail::require_outside_of_run("accumulate");
  if (calls < 1)
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("cannot accumulate over ", calls, " calls"), .help = "use 1 or more"});
  accumulate_ = calls;
}

void OptimizerCore::set_digest(const DigestOptions& options) {
  detail::require_outside_of_run("set_digest");
  if (options.every < 0)
    throw InvalidArgument(errors::kBadOption, {.what = str("cannot compare digests every ", options.every, " steps"),
                                               .help = "use 0 for never"});
  digest_ = options;
}

torch::optim::OptimizerOptions& OptimizerCore::options(std::size_t group) {
  if (group >= groups_.size()) {
    throw InvalidArgument(errors::kBadOption, {.what = str("there is no parameter group ", group),
                                               .seen = counted(static_cast<int>(groups_.size()), "group")});
  }
  return *groups_[group].options;
}

void OptimizerCore::throw_other_options() {
  throw InvalidArgument(
      errors::kOptimizer,
      {.what = "the optimizer's options are of another class than asked for",
       .where = "options",
       .help = "ask for those of its own class: optimizer.options<torch::optim::SGDOptions>() for SGD"});
}

/// Inside run the calling replica's own: another's may be a step ahead.
const OptimizerCore::Local& OptimizerCore::counting_local() const {
  const detail::ContextEntry* top = detail::current_context();
  const bool here = top != nullptr && top->replica != nullptr && top->strategy == &module_->strategy();
  return *locals_[here ? static_cast<std::size_t>(top->replica->local_index()) : 0];
}

std::int64_t OptimizerCore::steps() const { return counting_local().steps; }
std::int64_t OptimizerCore::skipped_steps() const { return counting_local().skipped; }
torch::optim::Optimizer& OptimizerCore::inner(std::size_t replica) { return *locals_.at(replica)->inner; }
const std::vector<at::Tensor>& OptimizerCore::segments(std::size_t replica) const {
  return locals_.at(replica)->segments;
}

}  // namespace lockstep
