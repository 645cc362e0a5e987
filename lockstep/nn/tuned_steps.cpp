#include "lockstep/nn/tuned_steps.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/cores.h"
#include "lockstep/base/descriptor.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/remembered_replicas.h"
#include "lockstep/base/tune_report.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/runs.h"

namespace lockstep::detail {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Ends the process without its destructors and exit handlers, which would write.
[[noreturn]] void end_measured_program() {
  constexpr std::string_view kText =
      "lockstep: LOCKSTEP_TUNE is set: this run only measured training steps and wrote nothing. Unset it to train.\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText.data(), kText.size());
  ::_exit(1);
}

/// Times the steps of all optimizers of the process. Called on the threads of replica 0, which are those that call run.
class Reporter {
 public:
  void count_rows(const OptimizerCore& core) {
    const std::lock_guard lock(mutex_);
    add_rows(core);
  }

  void step_ends(const OptimizerCore& core) {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex_);
    add_rows(core);
    end_step(core, now);
  }

 private:
  void add_rows(const OptimizerCore& core) {
    if (!is_timed(core) || core.runs.begun == run_) return;  // once for each run, however many losses it has
    run_ = core.runs.begun;
    const auto& here = current_context()->notes->rows.here;
    rows_ = std::accumulate(here.begin(), here.end(), rows_);
  }

  void end_step(const OptimizerCore& core, Clock::time_point now) {
    if (!is_timed(core)) return;
    if (!last_) {
      begun_ = written_ = now;
      pending_ = head_line({.replicas = core.module->strategy().num_replicas_in_sync(),
                            .threads = at::get_num_threads(),
                            .cores = usable_cores(),
                            .program = noted_program_key()});
    } else {
      pending_ += step_line({seconds_between(*last_, now), rows_});
    }
    last_ = now;
    rows_ = 0;
    constexpr int kFirst = 16;               // a short program may end at any time
    constexpr double kBetweenWrites = 0.02;  // so that writing is nothing beside steps of a millisecond
    if (++steps_ > kFirst && seconds_between(written_, now) < kBetweenWrites) return;
    write();
    written_ = now;
    if (seconds_between(begun_, now) > tune_request()->seconds) end_measured_program();
  }

  bool is_timed(const OptimizerCore& core) {
    if (!timed_.expired()) return timed_.lock().get() == &core;
    timed_ = core.weak_from_this();
    return true;
  }

  void write() {
    if (!file_)
      file_ = Descriptor(::open(tune_request()->report.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!file_ || ::write(file_.get(), pending_.data(), pending_.size()) < 0) end_measured_program();
    pending_.clear();
  }

  std::mutex mutex_;  ///< strategies on several threads share the reporter
  std::weak_ptr<const OptimizerCore> timed_;
  std::uint64_t run_ = 0;  ///< whose rows are counted
  std::int64_t rows_ = 0;  ///< since the last step
  int steps_ = 0;
  std::optional<Clock::time_point> last_;
  Clock::time_point begun_, written_;
  std::string pending_;
  Descriptor file_;
};

class TunedSteps final : public StepObserver {
 public:
  void before_backward(const StepMoment& moment, const at::Tensor&) override {
    if (moment.replica() == 0) reporter().count_rows(moment.core);
  }
  void updated(const StepMoment& moment) override {
    if (moment.replica() != 0) return;
    reporter().step_ends(moment.core);
  }

 private:
  static Reporter& reporter() {
    static Reporter& all = *new Reporter;
    return all;
  }
};

}  // namespace

std::shared_ptr<StepObserver> make_tuned_steps() {
  static std::once_flag warned;
  std::call_once(warned, [] {
    say_warning("LOCKSTEP_TUNE is set: training steps are only measured, and no model, checkpoint or log is written");
  });
  return std::make_shared<TunedSteps>();
}

}  // namespace lockstep::detail
