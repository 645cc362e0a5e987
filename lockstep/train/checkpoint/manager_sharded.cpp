#include <chrono>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/nn/worker_model.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/checkpoint/manager.h"
#include "lockstep/train/checkpoint/shards.h"

// Checkpoints of which each worker writes a part. The calls are collectives; the writing in the background is not: there the folder
// itself tells the chief what the others have done.
namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

WorkerGroup& group_of(const Strategy& strategy) { return *lockstep::detail::StrategyAccess::workers(strategy); }

/// Throws on all workers if one has something to report.
void require_none(const Strategy& strategy, const std::string& mine, const char* help) {
  const auto all = workers::all_gather_texts(group_of(strategy), {mine}, "state of a sharded checkpoint",
                                             deadline_of(strategy.communication()));
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    if (all[worker].at(0).empty()) continue;
    throw FailedPrecondition(
        errors::kCheckpoint,
        {.what = str("worker ", worker, ' ', all[worker].at(0)), .where = "a sharded checkpoint", .help = help});
  }
}

/// The name of the unfinished checkpoint, whose folder every worker must see in its `folder`. Throws on all unless they do.
void require_visible(const Strategy& strategy, const std::string& folder, const std::string& name) {
  std::error_code failed;
  const bool is_there = fs::is_directory(str(folder, '/', name), failed);
  require_none(
      strategy, is_there ? "" : str("does not see in ", folder, " what the chief has made there: ", name),
      "sharded checkpoints need a folder that all workers share; without .sharded the chief writes everything, "
      "and only it needs the folder");
}

std::string chiefs_text(const Strategy& strategy, const std::string& text) {
  return workers::broadcast_texts(group_of(strategy), {text}, "name of a checkpoint",
                                  deadline_of(strategy.communication()))
      .at(0);
}

std::string name_of(const detail::CheckpointWriter& unfinished) {
  return fs::path(unfinished.folder()).filename().string();
}

/// Shared entries are divided among the workers by size, so their sizes are compared as well.
workers::Texts names_in(const Snapshot& captured) {
  workers::Texts names;
  for (const auto& [name, tensor] : captured.shared)
    names.push_back(lockstep::str("entry: ", name, ", ", tensor.scalar_type(), ' ', tensor.sizes()));
  for (const auto& [name, tensors] : captured.by_replica) names.push_back(str("entry by replica: ", name));
  return names;
}

}  // namespace

CheckpointManager::CheckpointManager(Strategy& strategy, std::string folder, CheckpointOptions options)
    : folder_(std::move(folder)), options_((require_valid(options.keep), std::move(options))), strategy_(&strategy) {
  if (!options_.sharded || !(options_.shard_timeout > 0)) {
    throw InvalidArgument(
        errors::kBadOption,
        {.what = options_.sharded ? str("shard_timeout must be > 0, got ", options_.shard_timeout)
                                  : "a manager with a strategy is for sharded checkpoints, got .sharded = false",
         .where = "CheckpointManager",
         .help = "without .sharded, make it on the chief with the folder alone"});
  }
  if (!strategy.is_chief() || is_being_tuned()) return;
  lock_.emplace(folder_);
  detail::remove_unfinished(folder_);
}

/// How long the others wait for the chief while it may be waiting for their parts.
Deadline CheckpointManager::limit_of_chief() const {
  constexpr double kDefaultSeconds = 600;  // of collectives between workers
  const double seconds = strategy_->communication().timeout_seconds.value_or(kDefaultSeconds);
  return seconds == 0 ? Deadline::never()
                      : Deadline::after(std::chrono::duration<double>(seconds + options_.shard_timeout));
}

void CheckpointManager::wait() {
  if (is_one_of_several())
    lockstep::detail::do_on_chief(
        *strategy_, "a sharded checkpoint", [this] { wait_here(); }, limit_of_chief());
  wait_here();  // for this worker's part, which the chief has
}

std::optional<CheckpointEntry> CheckpointManager::resume() {
  if (!is_one_of_several()) return resume_here();
  std::optional<CheckpointEntry> newest;
  lockstep::detail::do_on_chief(
      *strategy_, "a sharded checkpoint", [&] { newest = resume_here(); }, limit_of_chief());
  // Another worker may see an older state of a folder on the network.
  const std::string step = chiefs_text(*strategy_, newest ? std::to_string(newest->step) : "");
  const std::string name = chiefs_text(*strategy_, newest ? fs::path(newest->path).filename().string() : "");
  wait_here();
  if (step.empty()) return std::nullopt;
  return CheckpointEntry{std::stoll(step), str(folder_, '/', name)};
}

bool CheckpointManager::is_one_of_several() const { return strategy_ != nullptr && strategy_->num_workers() > 1; }

void CheckpointManager::require_shared_folder() {
  if (!is_one_of_several()) return;
  std::optional<detail::CheckpointWriter> probe;
  lockstep::detail::do_on_chief(*strategy_, "a sharded checkpoint",
                                [&] { probe.emplace(str(folder_, '/', detail::checkpoint_name(0))); });
  require_visible(*strategy_, folder_, chiefs_text(*strategy_, probe ? name_of(*probe) : ""));
}

bool CheckpointManager::save_share(std::int64_t step, Snapshot captured, const std::map<std::string, double>& metrics) {
  WorkerGroup& group = group_of(*strategy_);
  const Deadline deadline = deadline_of(strategy_->communication());
  workers::require_same(group, {.what = "snapshot", .lines = names_in(captured)}, "CheckpointManager::save", deadline);
  const detail::Shard shard{group.rank(), group.workers()};
  auto share = std::make_shared<const Snapshot>(detail::share_of(std::move(captured), shard));
  const std::int64_t bytes =
      workers::sum(group, static_cast<std::int64_t>(detail::bytes_to_write(*share)), "bytes of a checkpoint", deadline);
  std::shared_ptr<detail::CheckpointWriter> unfinished;
  lockstep::detail::do_on_chief(
      *strategy_, "a sharded checkpoint",
      [&] {
        if (leaves_out(step)) return;
        wait_to_save();
        require_no_later_steps(step);
        unfinished = std::make_shared<detail::CheckpointWriter>(str(folder_, '/', detail::checkpoint_name(step)));
        detail::require_free_space(unfinished->folder(), static_cast<std::uint64_t>(bytes));
      },
      limit_of_chief());
  const std::string name = chiefs_text(*strategy_, unfinished ? name_of(*unfinished) : "");
  if (name.empty()) {
    if (!strategy_->is_chief()) ++left_out_;
    return false;
  }
  require_visible(*strategy_, folder_, name);
  wait_here();  // for this worker's part of the one before: the chief has it
  last_step_ = step;
  if (unfinished) {
    start([this, unfinished, share, info = CheckpointInfo{step, metrics}]() mutable {
      write_share(*unfinished, *share, info);
      share.reset();
    });
  } else {
    start([share, shard, folder = str(folder_, '/', name)]() mutable {
      detail::write_part(*share, folder, shard);
      share.reset();
    });
  }
  return true;
}

void CheckpointManager::write_share(detail::CheckpointWriter& unfinished, const Snapshot& share,
                                    const CheckpointInfo& info) const {
  const int workers = strategy_->num_workers();
  for (CheckpointFile& file : detail::write_files(share, unfinished.folder(), {0, workers}))
    unfinished.add_measured(std::move(file));
  const auto deadline = Deadline::after(std::chrono::duration<double>(options_.shard_timeout));
  for (int worker = 1; worker < workers; ++worker) {
    for (CheckpointFile& file : detail::take_part(unfinished.folder(), worker, deadline, is_abandoned_))
      unfinished.add_measured(std::move(file));
  }
  unfinished.commit({.step = info.step, .snapshot_version = share.version, .metrics = info.metrics});
  tidy_up(info.step);
}

}  // namespace lockstep::train
