#include "lockstep/train/checkpoint/manager.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/train/checkpoint/errors.h"

namespace lockstep::train {
namespace {

/// Steps of the training go first: if all cores are busy, writing takes longer.
void lower_priority_of_this_thread() {
  constexpr int kLowest = 19;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowest);  // where it is not allowed, nothing changes
}

}  // namespace

CheckpointManager::CheckpointManager(std::string folder, CheckpointOptions options)
    : folder_(std::move(folder)), options_((require_valid(options.keep), std::move(options))) {
  if (options_.sharded && workers::are_several()) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = "a manager of sharded checkpoints needs the strategy of the workers",
                           .where = "CheckpointManager",
                           .help = "make it on every worker: CheckpointManager(strategy, folder, {.sharded = true})"});
  }
  if (is_being_tuned()) return;
  lock_.emplace(folder_);
  detail::remove_unfinished(folder_);
}

CheckpointManager::~CheckpointManager() {
  is_abandoned_ = exception_.is_on_its_way();
  try {
    wait_here();
  } catch (const std::exception& error) {
    log(Severity::Error, str("the last checkpoint in ", folder_, " was not written: ", error.what()));
  }
}

std::optional<CheckpointEntry> CheckpointManager::resume_here() {
  wait_here();
  auto newest = newest_checkpoint(folder_);
  resumed_ = true;
  last_step_ = newest ? newest->step : -1;
  return newest;
}

bool CheckpointManager::is_busy() const {
  return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void CheckpointManager::wait_here() {
  if (writing_.valid()) writing_.get();
}

void CheckpointManager::require_no_later_steps(std::int64_t step) {
  const auto all = list_checkpoints(folder_);
  const bool is_known = resumed_ || (last_step_ && *last_step_ <= step);
  if (is_known || all.empty() || all.back().step <= step) return;
  throw FailedPrecondition(
      errors::kCheckpoint,
      {.what = str(folder_, " has a checkpoint of step ", all.back().step, ", which is later than step ", step),
       .where = "saving a checkpoint",
       .help = "continue that training (.resume = true, or resume() of the manager), or give the new one a "
               "folder of its own"});
}

bool CheckpointManager::save(std::int64_t step, Snapshot snapshot, std::map<std::string, double> metrics) {
  if (is_being_tuned()) return true;
  if (is_one_of_several()) return save_share(step, std::move(snapshot), metrics);
  if (leaves_out(step)) return false;
  wait_to_save();
  require_no_later_steps(step);
  last_step_ = step;
  auto kept = std::make_shared<const Snapshot>(std::move(snapshot));
  start([this, step, kept = std::move(kept), metrics = std::move(metrics)]() mutable {
    write(step, *kept, metrics);
    kept.reset();  // the memory is free before anybody asks for the result
  });
  return true;
}

bool CheckpointManager::leaves_out(std::int64_t step) {
  if (!is_busy() || !options_.leave_out_when_busy) return false;
  ++left_out_;
  log_info(str("the checkpoint of step ", step, " is left out: the previous one is still being written to ", folder_));
  return true;
}

void CheckpointManager::wait_to_save() {
  const auto begun = std::chrono::steady_clock::now();
  wait_here();
  waited_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

void CheckpointManager::start(std::function<void()> write) {
  if (!options_.background) return write();
  writing_ = std::async(std::launch::async, [write = std::move(write)] {
    lower_priority_of_this_thread();
    write();
  });
}

void CheckpointManager::write(std::int64_t step, const Snapshot& snapshot,
                              const std::map<std::string, double>& metrics) const {
  write_checkpoint(snapshot, str(folder_, '/', detail::checkpoint_name(step)), {.step = step, .metrics = metrics});
  tidy_up(step);
}

void CheckpointManager::tidy_up(std::int64_t newest_step) const {
  std::vector<detail::KeptCheckpoint> all;
  const auto path_of = [this](std::int64_t step) { return str(folder_, '/', detail::checkpoint_name(step)); };
  for (const CheckpointEntry& entry : list_checkpoints(folder_)) {
    if (entry.path != path_of(entry.step)) continue;  // renamed by hand: not ours any more
    if (entry.step > newest_step) {
      detail::remove_checkpoint(entry.path);
      continue;
    }
    all.push_back({entry.step});
    try {
      const Manifest manifest = read_manifest(entry.path);
      const auto score = manifest.metrics.find(options_.keep.best_metric);
      if (score != manifest.metrics.end()) all.back().score = score->second;
    } catch (const Error&) {
      // Damaged: it counts as one without a score, and goes when its turn comes.
    }
  }
  const detail::KeepPlan plan = plan_keeping(all, options_.keep);
  for (const std::int64_t step : plan.remove) detail::remove_checkpoint(path_of(step));
  for (const std::int64_t step : plan.leave_optimizer) {
    try {
      for (const std::string& part : options_.optimizer_parts) detail::leave_out_part(path_of(step), part);
    } catch (const DataLoss&) {
      // Damaged: as above.
    }
  }
}

}  // namespace lockstep::train
