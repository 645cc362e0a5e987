#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_local.h"
#include "lockstep/nn/outside_of_run.h"

namespace lockstep {

void OptimizerCore::set_reduce_op(ReduceOp op) {
  detail::require_outside_of_run("set_reduce_op");
  reduce_op_ = op;
}

void OptimizerCore::set_not_finite(NotFinite policy) {
  detail::require_outside_of_run("set_not_finite");
  not_finite_ = policy;
}

void OptimizerCore::set_learning_rate(double rate) {
  detail::require_outside_of_run("set_learning_rate");
  if (!(rate >= 0)) throw InvalidArgument(errors::kBadOption, {.what = str("a learning rate must not be negative or NaN: ", rate)});
  for (auto& group : groups_) group.options->set_lr(rate);
}

void OptimizerCore::require_no_open_window(const char* operation) const {
  for (const auto& local : locals_) {
    if (local->accumulated == 0) continue;
    throw_use(str("gradients of ", local->accumulated, " calls wait for the rest of their window"),
              str("call it between updates, after ", accumulate_, " calls of minimize"), operation);
  }
}

void OptimizerCore::start_anew_at(std::int64_t steps) {
  for (auto& local : locals_) {
    drop_gradients(*local);
    local->steps = steps;
  }
}

void OptimizerCore::set_clip_global_norm(std::optional<double> max_norm) {
  detail::require_outside_of_run("set_clip_global_norm");
  if (max_norm && !(*max_norm > 0)) throw InvalidArgument(errors::kBadOption, {.what = str("the largest norm must be positive, not ", *max_norm)});
  max_norm_ = max_norm;
}

void OptimizerCore::set_clip_value(std::optional<double> limit) {
  detail::require_outside_of_run("set_clip_value");
  if (limit && !(*limit > 0)) throw InvalidArgument(errors::kBadOption, {.what = str("the largest value must be positive, not ", *limit)});
  value_limit_ = limit;
}

void OptimizerCore::set_accumulate(int calls) {
  detail::require_outside_of_run("accumulate");
  if (calls < 1) throw InvalidArgument(errors::kBadOption, {.what = str("cannot accumulate over ", calls, " calls"), .help = "use 1 or more"});
  accumulate_ = calls;
}

void OptimizerCore::set_digest(const DigestOptions& options) {
  detail::require_outside_of_run("set_digest");
  if (options.every < 0) throw InvalidArgument(errors::kBadOption, {.what = str("cannot compare digests every ", options.every, " steps"), .help = "use 0 for never"});
  digest_ = options;
}

torch::optim::OptimizerOptions& OptimizerCore::options(std::size_t group) {
  if (group >= groups_.size()) {
    throw InvalidArgument(errors::kBadOption, {.what = str("there is no parameter group ", group), .seen = counted(static_cast<int>(groups_.size()), "group")});
  }
  return *groups_[group].options;
}

void OptimizerCore::throw_other_options() {
  throw InvalidArgument(errors::kOptimizer, {.what = "the optimizer's options are of another class than asked for",
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
const std::vector<at::Tensor>& OptimizerCore::segments(std::size_t replica) const { return locals_.at(replica)->segments; }

}  // namespace lockstep
