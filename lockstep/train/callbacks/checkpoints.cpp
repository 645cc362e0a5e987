#include "lockstep/train/callbacks/checkpoints.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/worker_model.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/checkpoint_callback.h"
#include "lockstep/train/exact_numbers.h"
#include "lockstep/train/monitored.h"
#include "lockstep/train/require_option.h"
#include "lockstep/values/float_text.h"

namespace lockstep::train {
namespace {

using detail::require_option;

class CheckpointWriting final : public detail::CheckpointCallback {
 public:
  CheckpointWriting(const char* kind, const ModelCheckpointOptions& options, bool is_backup, bool delete_at_end)
      : kind_(kind), options_(options), is_backup_(is_backup), delete_at_end_(delete_at_end) {
    require_option(!options_.folder.empty(), kind, "folder must not be empty",
                   "give it a .folder, such as \"run/checkpoints\"");
    require_option(options_.every_epochs >= 0, kind, str("every_epochs must be >= 0, got ", options_.every_epochs),
                   "0 leaves out the ends of epochs");
    require_option(
        options_.every.steps >= 0 && options_.every.seconds >= 0, kind,
        str("every must be >= 0, got ", options_.every.steps, " steps and ", options_.every.seconds, " seconds"),
        "0 means never for this reason");
    require_option(!options_.only_best || !best_metric().empty(), kind, "only_best needs a metric",
                   "name it in .checkpoints = {.keep = {.best_metric = \"val_loss\"}}");
    require_valid(options_.checkpoints.keep);
  }
  std::string name() const override { return str(kind_, ' ', options_.folder); }
  bool decides_in_batches() const override { return options_.every.steps > 0 || options_.every.seconds > 0; }

  Decision train_begins(const Training& training) override {
    if (!training.is_resumed) {
      best_.reset();
      last_step_ = 0;
      last_seconds_ = 0;
    }
    best_before_.reset();
    is_new_best_ = false;
    lockstep::detail::do_on_chief(training.strategy, kind_, [&] { manager(training.strategy); });
    if (is_sharded(training.strategy)) manager(training.strategy).require_shared_folder();
    return {};
  }
  Decision batch_ends(const Training& training) override {
    scores_.clear();
    // Only the chief looks at its clock; its decision reaches all workers.
    const SaveInterval interval{options_.every.steps, training.strategy.is_chief() ? options_.every.seconds : 0};
    return {.save_self = is_due(interval, last_step_, training.step, last_seconds_, training.seconds)};
  }
  Decision epoch_ends(const Training& training, const Logs& logs) override {
    scores_ = logs;
    const bool is_epoch = options_.every_epochs > 0 && (training.epoch + 1) % options_.every_epochs == 0;
    if (!is_epoch) return {};
    return {.save_self = !options_.only_best || is_best(logs)};
  }
  void save(const Training& training) override {
    last_step_ = training.step;
    last_seconds_ = training.seconds;
    const bool was_new_best = std::exchange(is_new_best_, false);
    // Without .sharded only the chief knows that one was left out. All save if one worker asks for it.
    if (!write(training) && was_new_best) best_ = best_before_;
  }
  Decision train_ends(const Training& training) override {
    finish(training.strategy);
    if (training.strategy.is_chief()) report();
    manager_.reset();  // another training may write to the folder now
    if (!training.strategy.is_chief()) return {};
    if (delete_at_end_) {
      for (const CheckpointEntry& entry : list_checkpoints(options_.folder)) detail::remove_checkpoint(entry.path);
    }
    return {};
  }

  std::string to_text() const override {
    return nlohmann::json{{"best", best_ ? detail::exact_text(*best_) : ""},
                          {"last_step", last_step_},
                          {"last_seconds", detail::exact_text(last_seconds_)}}
        .dump();
  }
  void from_text(const std::string& text) override {
    const auto state = nlohmann::json::parse(text);
    best_ = state.at("best") == "" ? std::nullopt : std::optional(detail::exact_number(state.at("best")));
    last_step_ = state.at("last_step");
    last_seconds_ = detail::exact_number(state.at("last_seconds"));
  }

  const std::string& folder() const override { return options_.folder; }
  bool always_resumes() const override { return is_backup_; }
  std::optional<CheckpointEntry> newest(Strategy& strategy) override { return manager(strategy).resume_here(); }
  void finish(const Strategy& strategy) override {
    const auto wait = [&] {
      if (manager_) manager_->wait();
    };
    is_sharded(strategy) ? wait() : lockstep::detail::do_on_chief(strategy, kind_, wait);
  }

 private:
  const std::string& best_metric() const { return options_.checkpoints.keep.best_metric; }

  bool is_best(const Logs& logs) {
    const double value = detail::monitored(kind_, best_metric(), logs);
    const bool is_better =
        !best_ || std::isnan(*best_) || (options_.checkpoints.keep.highest_is_best ? value > *best_ : value < *best_);
    if (is_better) {
      if (!is_new_best_) best_before_ = best_;
      is_new_best_ = true;
      best_ = value;
    }
    return is_better;
  }

  /// False on the chief, and with .sharded on every worker, if the checkpoint was left out.
  bool write(const Training& training) {
    Snapshot snapshot = capture(training.strategy, training.parts);
    bool is_saved = true;
    const auto save = [&] { is_saved = manager(training.strategy).save(training.step, std::move(snapshot), scores_); };
    if (is_sharded(training.strategy)) {
      save();
    } else {
      snapshot = gather(training.strategy, std::move(snapshot));
      lockstep::detail::do_on_chief(training.strategy, kind_, save);
    }
    return is_saved;
  }

  bool is_sharded(const Strategy& strategy) const { return options_.checkpoints.sharded && strategy.num_workers() > 1; }
  /// Of the chief, with .sharded of every worker.
  CheckpointManager& manager(Strategy& strategy) {
    if (!manager_ && is_sharded(strategy))
      manager_ = std::make_unique<CheckpointManager>(strategy, options_.folder, options_.checkpoints);
    if (!manager_) manager_ = std::make_unique<CheckpointManager>(options_.folder, options_.checkpoints);
    return *manager_;
  }
  /// What the disk has cost this training.
  void report() const {
    if (!manager_) return;
    constexpr double kNotableSeconds = 5;
    if (manager_->left_out() > 0)
      say_info(lockstep::str(name(), ": ", counted(manager_->left_out(), "checkpoint"),
                             " left out, because the previous one was still being written"));
    if (manager_->waited_seconds() > kNotableSeconds)
      say_info(lockstep::str(name(), ": the training has waited ",
                             float_text(static_cast<float>(std::round(manager_->waited_seconds() * 10) / 10)),
                             " s for checkpoints that were still being written; .leave_out_when_busy leaves out those "
                             "that come too soon"));
  }

  const char* kind_;
  ModelCheckpointOptions options_;
  bool is_backup_, delete_at_end_;
  std::unique_ptr<CheckpointManager> manager_;  ///< of the chief, or of each worker, while a training runs
  Logs scores_;                                 ///< of the epoch that has ended, until the next step
  std::optional<double> best_;
  std::optional<double> best_before_;  ///< until the checkpoint of a new best is saved
  bool is_new_best_ = false;           ///< not yet saved
  std::int64_t last_step_ = 0;         ///< of the last checkpoint
  double last_seconds_ = 0;
};

}  // namespace

std::shared_ptr<Callback> model_checkpoint(const ModelCheckpointOptions& options) {
  return std::make_shared<CheckpointWriting>("model_checkpoint", options, false, false);
}

std::shared_ptr<Callback> backup_and_restore(const BackupAndRestoreOptions& options) {
  const auto all = std::make_unique<ModelCheckpointOptions>();  // g++ 12 warns wrongly of one on the stack
  all->folder = options.folder;
  all->every_epochs = options.every_epochs;
  all->every = options.every;
  all->checkpoints.keep.keep = 2;
  return std::make_shared<CheckpointWriting>("backup_and_restore", *all, true, options.delete_checkpoint);
}

}  // namespace lockstep::train
