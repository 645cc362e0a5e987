#include "lockstep/train/callbacks/loggers.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/logs/event_file.h"
#include "lockstep/train/logs/line_logs.h"

namespace lockstep::train {
namespace {

void require_interval_of_logger(const char* callback, std::int64_t every_steps) {
  if (every_steps >= 0) return;
  throw InvalidArgument(errors::kBadOption, {.what = str("every_steps must be >= 0, got ", every_steps),
                                             .where = callback,
                                             .help = "leave it out to log epochs only"});
}

void require_path(const char* callback, const char* option, const std::string& path) {
  if (!path.empty()) return;
  throw InvalidArgument(errors::kBadOption, {.what = str(option, " must not be empty"),
                                             .where = callback,
                                             .help = str("give it a .", option, ", such as \"run/logs\"")});
}

Logs with_learning_rate(Logs logs, const Training& training) {
  logs["learning_rate"] = training.learning_rate;
  return logs;
}

/// Numbers that a log is written with, one after the other: epochs, or steps. Every worker counts, the chief writes.
struct LastNumber {
  std::int64_t value = -1;   ///< of the last row
  bool is_restored = false;  ///< the training continues from a checkpoint, and the file with it

  /// Once for each training.
  std::optional<std::int64_t> begin() {
    if (!std::exchange(is_restored, false)) {
      value = -1;
      return std::nullopt;
    }
    return value;
  }
  void restore(std::int64_t saved) { *this = {saved, true}; }
};

template <class Log>
class LineLogger final : public Callback {
 public:
  LineLogger(const char* kind, std::string path, std::int64_t every_steps)
      : kind_(kind), path_(std::move(path)), every_steps_(every_steps) {
    require_interval_of_logger(kind, every_steps);
    require_path(kind, "path", path_);
  }
  std::string name() const override { return str(kind_, " ", path_); }

  Decision train_begins(const Training& training) override {
    const auto resume_after = last_.begin();
    log_.reset();
    if (!training.strategy.is_chief()) return {};
    log_.emplace(path_, LineLogOptions{.key = every_steps_ > 0 ? "step" : "epoch", .resume_after = resume_after});
    return {};
  }
  Decision batch_ends(const Training& training) override {
    if (every_steps_ == 0 || training.step % every_steps_ != 0) return {};
    last_.value = training.step;
    if (log_) log_->write(training.step, with_learning_rate(training.running_logs(), training));
    return {};
  }
  Decision epoch_ends(const Training& training, const Logs& logs) override {
    if (every_steps_ > 0) return {};
    last_.value = training.epoch;
    if (log_) log_->write(training.epoch, with_learning_rate(logs, training));
    return {};
  }
  Decision train_ends(const Training&) override {
    log_.reset();
    return {};
  }

  std::string to_text() const override { return std::to_string(last_.value); }
  void from_text(const std::string& text) override { last_.restore(std::stoll(text)); }

 private:
  const char* kind_;
  std::string path_;
  std::int64_t every_steps_;
  LastNumber last_;
  std::optional<Log> log_;  ///< on the chief, while a training runs
};

/// A folder of event files, whose events have numbers of one kind: a resumed training drops those behind its checkpoint by their
/// numbers.
class Run {
 public:
  explicit Run(std::string folder) : folder_(std::move(folder)) {}

  /// Without an event a run has no file; one that is resumed starts a file at once.
  void begin(bool writes) {
    const auto resume_after = last_.begin();
    file_.reset();
    writes_ = writes;
    if (writes && resume_after) file_.emplace(folder_, EventFileOptions{.resume_after = resume_after});
  }
  /// Makes values of `logs` events with `tag_of(name)`; without one they are left out.
  template <class F>
  void write(std::int64_t number, const Logs& logs, F&& tag_of) {
    for (const auto& [name, value] : logs) {
      const std::string tag = tag_of(name);
      if (tag.empty()) continue;
      last_.value = number;
      if (!writes_) continue;
      if (!file_) file_.emplace(folder_);
      file_->scalar(tag, number, value);
    }
    if (file_) file_->flush();  // a checkpoint that counts these events may follow
  }
  void end() {
    if (file_) file_->close();
    file_.reset();
  }

  std::int64_t last() const { return last_.value; }
  void restore(std::int64_t last) { last_.restore(last); }

 private:
  std::string folder_;
  bool writes_ = false;
  LastNumber last_;
  std::optional<EventFile> file_;
};

class TensorBoardWriter final : public Callback {
 public:
  explicit TensorBoardWriter(TensorBoardOptions options)
      : options_(std::move(options)),
        train_(options_.folder + "/train"),
        validation_(options_.folder + "/validation"),
        steps_(options_.folder + "/steps") {
    require_interval_of_logger("tensor_board", options_.every_steps);
    require_path("tensor_board", "folder", options_.folder);
  }
  std::string name() const override { return str("tensor_board ", options_.folder); }

  Decision train_begins(const Training& training) override {
    for (Run* run : {&train_, &validation_, &steps_}) run->begin(training.strategy.is_chief());
    return {};
  }
  Decision batch_ends(const Training& training) override {
    if (options_.every_steps == 0 || training.step % options_.every_steps != 0) return {};
    const Logs values = training.strategy.is_chief() ? training.running_logs() : Logs{};
    steps_.write(training.step, with_learning_rate(values, training),
                 [](const std::string& name) { return "batch_" + name; });
    return {};
  }
  Decision epoch_ends(const Training& training, const Logs& logs) override {
    constexpr std::string_view kValidation = "val_";
    train_.write(training.epoch, with_learning_rate(logs, training), [&](const std::string& name) {
      return name.starts_with(kValidation) ? std::string() : "epoch_" + name;
    });
    validation_.write(training.epoch, logs, [&](const std::string& name) {
      return name.starts_with(kValidation) ? "epoch_" + name.substr(kValidation.size()) : std::string();
    });
    return {};
  }
  Decision train_ends(const Training&) override {
    for (Run* run : {&train_, &validation_, &steps_}) run->end();
    return {};
  }

  std::string to_text() const override {
    return nlohmann::json{{"train", train_.last()}, {"validation", validation_.last()}, {"steps", steps_.last()}}
        .dump();
  }
  void from_text(const std::string& text) override {
    const auto last = nlohmann::json::parse(text);
    train_.restore(last.at("train"));
    validation_.restore(last.at("validation"));
    steps_.restore(last.at("steps"));
  }

 private:
  TensorBoardOptions options_;
  Run train_, validation_, steps_;
};

}  // namespace

std::shared_ptr<Callback> csv_logger(const CsvLoggerOptions& options) {
  return std::make_shared<LineLogger<CsvLog>>("csv_logger", options.path, options.every_steps);
}
std::shared_ptr<Callback> json_lines_logger(const JsonLinesLoggerOptions& options) {
  return std::make_shared<LineLogger<JsonLinesLog>>("json_lines_logger", options.path, options.every_steps);
}
std::shared_ptr<Callback> tensor_board(const TensorBoardOptions& options) {
  return std::make_shared<TensorBoardWriter>(options);
}

}  // namespace lockstep::train
