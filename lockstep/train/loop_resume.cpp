#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/nn/worker_model.h"
#include "lockstep/strategy/detail/snapshot_entries.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/chiefs_snapshot.h"
#include "lockstep/train/loop_impl.h"
#include "lockstep/train/require_option.h"

// What a checkpoint keeps of a loop, and how a loop continues from one.
namespace lockstep::train {
namespace {

constexpr const char *kTrainSource = "/batches", *kValidationSource = "/validation_batches";

/// "/batches", "/batches_2", "/batches_3"
std::string entry_of_pass(const char* kind, std::size_t pass) {
  return pass == 0 ? kind : lockstep::str(kind, '_', pass + 1);
}

std::string state_entry(const std::string& name, const Callback& callback) {
  return lockstep::str(name, "/callbacks/", callback.name());
}

detail::LoopPlace read_place(const Snapshot& from, const std::string& name) {
  lockstep::detail::SnapshotReader reader(from, name);
  try {
    return detail::place_of(reader.text("place"));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    reader.refuse("place", error.what());
  }
}

/// The number of replicas is a part of the training, whatever `best_cpus` would choose today.
void require_same_replicas(const Snapshot& from, const Strategy& strategy, const std::string& path) {
  const int before = lockstep::detail::SnapshotReader(from, "random").replicas();
  const int now = strategy.num_replicas_in_sync();
  if (before == 0 || before == now) return;
  throw FailedPrecondition(
      errors::kCheckpoint,
      {.what = lockstep::str("the training was begun on ", counted(before, "replica"), " and cannot continue on ", now),
       .where = "fit",
       .seen = path,
       .help = lockstep::str("make the strategy with .devices = ls::cpus(", before,
                             "), whatever ls::best_cpus() suggests now: the number of replicas decides the bits. To "
                             "continue on another number, restore the model and the optimizer by hand")});
}

bool is_same_folder(const std::string& a, const std::string& b) {
  std::error_code failed;
  return a == b || std::filesystem::equivalent(a, b, failed);
}

}  // namespace

detail::LoopPlace Loop::Impl::place() const {
  detail::LoopPlace place;
  place.step = training.step;
  place.epoch = training.epoch + (is_epoch_done ? 1 : 0);
  place.is_in_epoch = (is_epoch_open || takes_up_epoch) && !is_epoch_done;
  place.seconds = training.seconds;
  place.stopping = stopping;
  place.history = history;
  if (!place.is_in_epoch) return place;
  place.batch = training.batch;
  place.rows = training.rows;
  place.pass = takes_up_pass != Pass::None ? takes_up_pass : pass;
  place.trainings = std::max(done.trainings, to_pass_over.trainings);
  place.validation_begins = std::max(done.validation_begins, to_pass_over.validation_begins);
  place.validations = std::max(done.validations, to_pass_over.validations);
  place.train_logs = train_logs;
  place.validation_logs = validation_logs;
  place.ending_epoch = ending_epoch;
  place.epoch_seconds = training.epoch_seconds;
  place.input_wait_seconds = training.input_wait_seconds;
  return place;
}

void Loop::Impl::go_to(const detail::LoopPlace& place) {
  training.step = place.step;
  training.epoch = place.epoch;
  training.batch = place.batch;
  training.rows = place.rows;
  training.seconds = place.seconds;
  training.epoch_seconds = place.epoch_seconds;
  training.input_wait_seconds = place.input_wait_seconds;
  history = place.history;
  stopping = place.stopping;
  ending_epoch = place.ending_epoch;
  train_logs = place.train_logs;
  validation_logs = place.validation_logs;
  done = {};
  to_pass_over = {place.trainings, place.validation_begins, place.validations};
  takes_up_epoch = place.is_in_epoch;
  takes_up_pass = place.pass;
  running_of_step = -1;
  const auto ago = [](double seconds) {
    return LoopClock::now() - std::chrono::duration_cast<LoopClock::duration>(std::chrono::duration<double>(seconds));
  };
  begun = ago(place.seconds);
  epoch_begun = ago(place.epoch_seconds);
}

void Loop::Impl::capture(Snapshot& into, const std::string& name) {
  lockstep::detail::put_text(into, name + "/place", to_text(place()));
  meters.capture(into, name + "/meters");
  for (const auto& callback : options.callbacks) {
    const std::string entry = state_entry(name, *callback);
    lockstep::detail::put_text(into, entry, callback->to_text());
    if (const Stateful* const kept = callback->state()) kept->capture(into, entry);
  }
  const auto add = [&](const std::vector<Source>& sources, const char* kind) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const Source& source = sources[i];
      if (source.batches != nullptr)
        source.batches->capture(into, name + entry_of_pass(kind, i));
      else  // not used since it was resumed
        into.texts.insert(source.resumed.texts.begin(), source.resumed.texts.end());
    }
  };
  add(train_sources, kTrainSource);
  add(validation_sources, kValidationSource);
}

void Loop::Impl::check(const Snapshot& from, const std::string& name) const {
  read_place(from, name);
  meters.check(from, name + "/meters");
  for (const auto& callback : options.callbacks) {
    const std::string entry = state_entry(name, *callback);
    if (const Stateful* const kept = callback->state(); kept != nullptr && from.texts.contains(entry))
      kept->check(from, entry);
  }
}

void Loop::Impl::restore(const Snapshot& from, const std::string& name) {
  go_to(read_place(from, name));
  meters.restore(from, name + "/meters");
  for (const auto& callback : options.callbacks) {
    const std::string entry = state_entry(name, *callback);
    const auto saved = from.texts.find(entry);
    if (saved == from.texts.end()) {
      say_info(lockstep::str("callback \"", callback->name(), "\" is not in the checkpoint: it starts from scratch"));
      continue;
    }
    callback->from_text(saved->second);
    if (Stateful* const kept = callback->state()) kept->restore(from, entry);
  }
  const auto keep = [&](std::vector<Source>& sources, const char* kind) {
    sources.clear();
    const std::string prefix = name + kind;
    for (auto text = from.texts.lower_bound(prefix); text != from.texts.end() && text->first.starts_with(prefix);
         ++text) {
      const std::string number =
          text->first.substr(prefix.size(), text->first.find('/', prefix.size()) - prefix.size());
      const std::size_t i = number.empty() ? 0 : std::stoul(number.substr(1)) - 1;
      if (i >= sources.size()) sources.resize(i + 1);
      sources[i].entry = prefix + number;
      sources[i].resumed.texts.insert(*text);
    }
  };
  keep(train_sources, kTrainSource);
  keep(validation_sources, kValidationSource);
}

std::optional<CheckpointEntry> Loop::Impl::checkpoint_to_resume() const {
  const std::string& path = options.resume.path();
  std::optional<CheckpointEntry> found;
  for (detail::CheckpointCallback* const callback : checkpoints) {
    const bool is_asked = path.empty() ? options.resume.is_wanted() || callback->always_resumes()
                                       : is_same_folder(callback->folder(), path);
    if (!is_asked) continue;
    auto newest = callback->newest(strategy);
    if (newest && (!found || newest->step > found->step)) found = std::move(newest);
  }
  if (found || path.empty()) return found;
  if (std::filesystem::exists(path + "/manifest.json")) return CheckpointEntry{read_manifest(path).step, path};
  found = newest_checkpoint(path);
  if (found) return found;
  throw NotFound(errors::kCheckpoint,
                 {.what = lockstep::str("there is no checkpoint to resume in ", path),
                  .where = "fit",
                  .help = "give .resume the folder of a checkpoint or of several; .resume = true continues from the "
                          "training's own checkpoints, if there are any yet"});
}

void Loop::Impl::resume() {
  bool is_wanted = options.resume.is_wanted();
  for (const detail::CheckpointCallback* callback : checkpoints) is_wanted |= callback->always_resumes();
  if (!is_wanted) return;
  if (checkpoints.empty() && options.resume.path().empty()) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = "resume = true needs a callback that writes checkpoints",
                           .where = "fit",
                           .help = "add ls::train::model_checkpoint to .callbacks, or give .resume the path of a "
                                   "checkpoint"});
  }
  if (is_being_tuned()) return;
  std::optional<Snapshot> snapshot;
  std::string path;
  lockstep::detail::do_on_chief(strategy, "fit", [&] {
    const auto found = checkpoint_to_resume();
    if (!found) return;
    path = found->path;
    snapshot = read_checkpoint(path);
  });
  snapshot = detail::chiefs_snapshot(strategy, std::move(snapshot));
  if (!snapshot) return;
  if (!options.inexact_resume) require_same_replicas(*snapshot, strategy, path);
  lockstep::restore(strategy, *snapshot, training.parts);
  training.is_resumed = true;
  if (printer) printer->say(lockstep::str("Resumes after step ", training.step, " from ", path));
}

bool Loop::Impl::wants_places() const {
  return !options.inexact_resume && (options.resume.is_wanted() || !checkpoints.empty());
}

void Loop::Impl::require_place(detail::PassSource& batches) const {
  if (!wants_places()) return;
  const auto obstacle = batches.place_obstacle(strategy);
  if (!obstacle) return;
  throw FailedPrecondition(
      errors::kCheckpoint,
      {.what = "a training with checkpoints needs data whose position can be saved",
       .where = "fit",
       .seen = *obstacle,
       .help =
           "use ordered, repeatable stages of ls::data; or set .inexact_resume = true: a resumed training then reads "
           "the batches before its position again, which may not be the same"});
}

void Loop::Impl::use(Source& source, detail::PassSource& batches) {
  if (source.batches != nullptr) source.replaced.push_back(source.batches->number());
  if (wants_places() && std::ranges::find(source.replaced, batches.number()) != source.replaced.end()) {
    throw FailedPrecondition(
        errors::kCheckpoint,
        {.what = "a checkpoint has one position for each pass of an epoch, and cannot have those of datasets "
                 "that take turns from epoch to epoch",
         .where = lockstep::str("epoch ", training.epoch + 1, " of ", training.epochs),
         .help = "use the same datasets in the same order in every epoch, or set .inexact_resume = "
                 "true"});
  }
  source.batches = batches.shared_from_this();
  const Snapshot resumed = std::exchange(source.resumed, {});
  source.is_resumed = batches.restore(strategy, resumed, source.entry);
}

Loop::Impl::Source& Loop::Impl::source_of(bool of_training, const detail::PassSource& batches) {
  const auto is_of_batches = [&](const Source& source) { return source.batches.get() == &batches; };
  const bool is_shared = std::ranges::any_of(of_training ? validation_sources : train_sources, is_of_batches);
  detail::require_option(!is_shared || !(wants_places() || options.steps_per_epoch), "a training loop",
                         "training and validation must not share one distributed dataset, which has one position",
                         "make ls::train::Batches of the dataset itself, or distribute it once for each of them");
  std::vector<Source>& sources = of_training ? train_sources : validation_sources;
  const auto known = std::ranges::find_if(sources, is_of_batches);  // a second pass of the epoch over the same ones
  if (known != sources.end()) return *known;
  const auto i = static_cast<std::size_t>(of_training ? done.trainings : done.validations);
  if (i >= sources.size()) sources.resize(i + 1);
  return sources[i];
}

std::unique_ptr<Stateful> Loop::Impl::make_state() {
  struct State final : Stateful {
    explicit State(Loop::Impl& its) : loop(its) {}
    void capture(Snapshot& into, const std::string& name) const override { loop.capture(into, name); }
    void check(const Snapshot& from, const std::string& name) const override { loop.check(from, name); }
    void restore(const Snapshot& from, const std::string& name) override { loop.restore(from, name); }
    Loop::Impl& loop;
  };
  return std::make_unique<State>(*this);
}

}  // namespace lockstep::train
