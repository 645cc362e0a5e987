#include "lockstep/train/callbacks/loggers.h"

#include <optional>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/callbacks/logging.h"
#include "lockstep/train/logs/line_logs.h"

namespace lockstep::train {
namespace {

using detail::LastNumber;
using detail::with_learning_rate;

template <class Log>
class LineLogger final : public Callback {
 public:
  LineLogger(const char* kind, std::string path, std::int64_t every_steps)
      : kind_(kind), path_(std::move(path)), every_steps_(every_steps) {
    detail::require_logger(kind, every_steps, "path", path_);
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

}  // namespace

std::shared_ptr<Callback> csv_logger(const CsvLoggerOptions& options) {
  return std::make_shared<LineLogger<CsvLog>>("csv_logger", options.path, options.every_steps);
}
std::shared_ptr<Callback> json_lines_logger(const JsonLinesLoggerOptions& options) {
  return std::make_shared<LineLogger<JsonLinesLog>>("json_lines_logger", options.path, options.every_steps);
}

}  // namespace lockstep::train
