#include "apps/lockstep/tune.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>

#include "apps/lockstep/outcome.h"
#include "apps/lockstep/output.h"
#include "apps/lockstep/plan.h"
#include "apps/lockstep/process.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/remembered_replicas.h"
#include "lockstep/base/replica_choice.h"
#include "lockstep/base/text.h"
#include "lockstep/base/tune_report.h"
#include "lockstep/base/tune_request.h"

namespace lockstep::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongestRound = 2;

/// A folder for reports, gone with this process.
class ReportFolder {
 public:
  ReportFolder() {
    path_ = (std::filesystem::temp_directory_path() / "lockstep-tune-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) throw UsageError(str("cannot make a folder like ", path_, "; set TMPDIR"));
  }
  ~ReportFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ReportFolder(const ReportFolder&) = delete;
  ReportFolder& operator=(const ReportFolder&) = delete;

  std::string next() { return str(path_, '/', count_++); }

 private:
  std::string path_;
  int count_ = 0;
};

/// One run of the program.
struct Run {
  TuneReport report;
  Seconds took{};
  bool is_whole = false;    ///< enough steps, or all that the program takes
  bool has_failed = false;  ///< it ended with an error before enough steps were seen
  std::string failure;      ///< how it ended, if it ended before enough steps were seen
  std::vector<std::string> tail;
};

class Tuning {
 public:
  Tuning(const TuneCommand& command, int life_line) : command_(command), life_line_(life_line) {
    const auto signals = watched_signals();
    signals_ = Descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    for (const int n : command.replicas.empty() ? plan_replicas(usable_cores()) : command.replicas)
      measured_.push_back({.replicas = n});
    round_seconds_ = std::min(kLongestRound, command.seconds / (4.0 * static_cast<double>(measured_.size())));
  }

  int measure() {
    // In turns, and every second one backwards, so that a machine that slows down hits all alike.
    for (int round = 0; round < command_.rounds && has_time_for(round); ++round) {
      for (std::size_t i = 0; i < measured_.size(); ++i) {
        const bool is_backwards = round % 2 == 1;
        if (!measure(measured_[is_backwards ? measured_.size() - 1 - i : i], round, measured_.size() - i))
          return stopped_by_ == SIGINT ? kInterrupted : kStopped;
        if (round == 0 && i == 0 && measured_[0].rounds.empty()) return give_up();
      }
    }
    const ReplicaChoice choice = choose_replicas(measured_);
    std::cout << table_of(measured_) << "best: " << choice.why << "\n";
    if (command_.remember) {
      if (program_.empty()) {
        throw UsageError(
            "not remembered: the program calls ls::best_cpus() with several names, and only its first training is "
            "measured; measure a program that trains one of the networks");
      }
      remember_replicas({program_, cpu_name(), cores_}, choice.replicas);
      std::cout << "remembered for " << program_ << " in " << remembered_replicas_path()
                << ": a program with ls::best_cpus() uses it\n";
    } else {
      std::cout << "Write ls::cpus(" << choice.replicas << "), or ls::best_cpus() and measure with --remember.\n";
    }
    return kOk;
  }

 private:
  double left() const { return command_.seconds - std::chrono::duration<double>(Clock::now() - begun_).count(); }

  /// Later rounds cost what the ones before did.
  bool has_time_for(int round) const {
    double needed = 0;
    for (const auto& [replicas, seconds] : costs_) needed += seconds;
    return round == 0 || needed <= left();
  }

  /// False if the user has stopped us. `to_come`: numbers that this round has still to measure, with this one.
  bool measure(ReplicaMeasurement& one, int round, std::size_t to_come) {
    if (round > 0 && one.rounds.empty()) return true;
    const auto run = run_once(one.replicas, round == 0 ? left() / static_cast<double>(to_come) : left());
    if (!run) return false;
    costs_[one.replicas] = run->took.count();
    if (run->has_failed || (round == 0 && run->report.steps.empty())) {
      one.rounds.clear();
      one.not_measured = run->failure;
      last_tail_ = run->tail;
      return true;
    }
    if (round > 0 && !run->is_whole) return true;  // out of time
    const TunedStep step = median_step(run->report.steps);
    one.threads = run->report.threads;
    one.rows = step.rows;
    one.rounds.push_back(step.seconds);
    program_ = run->report.program;
    cores_ = run->report.cores;
    return true;
  }

  /// Nothing if the user has stopped us.
  std::optional<Run> run_once(int replicas, double seconds) {
    const std::string path = reports_.next();
    const auto begun = Clock::now();
    const TuneRequest asked{.replicas = replicas, .seconds = command_.seconds, .report = path};
    Process process = start_process(command_.program, {"LOCKSTEP_TUNE=" + to_text(asked)}, false);
    LineSplitter lines;
    Run run;
    std::optional<int> status;
    std::size_t bytes = 0;
    while (run.took.count() < seconds && !are_enough(run.report.steps, round_seconds_) && !status) {
      if (!wait(process, lines)) return stop();
      if (int ended = 0; waitpid(process.pid, &ended, WNOHANG) == process.pid) status = ended;
      bytes += read_report(file_text(path, bytes), run.report);
      run.took = Clock::now() - begun;
    }
    const bool are_seen = are_enough(run.report.steps, round_seconds_);
    run.is_whole = status || are_seen;
    run.has_failed = status && !are_seen && !(WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
    // Killed with all that it has started: it has no moment in which it could save, or a script could go on behind it.
    kill_descendants(Deadline::after(std::chrono::seconds(5)));
    read_output(process, lines);
    lines.finish();
    run.tail = telling_lines(lines.tail());
    const std::string what = run.report.replicas == 0 ? "no training step" : "only one training step";
    if (!status)
      run.failure = str(what, " within ", std::lround(seconds), " s: raise --seconds");
    else if (WIFSIGNALED(*status) || WEXITSTATUS(*status) != 0)
      run.failure = how_it_ended({.exit_code = WIFEXITED(*status) ? WEXITSTATUS(*status) : 0,
                                  .signal = WIFSIGNALED(*status) ? WTERMSIG(*status) : 0});
    else
      run.failure = str("the program took ", what, " and ended");
    return run;
  }

  std::nullopt_t stop() {
    kill_descendants(Deadline::after(std::chrono::seconds(5)));
    return std::nullopt;
  }

  /// Reads what the program prints, every 20 ms. False after a signal, or if the process that started this one is gone.
  bool wait(const Process& process, LineSplitter& lines) {
    constexpr int kMilliseconds = 20;
    pollfd events[] = {{signals_.get(), POLLIN, 0}, {life_line_, POLLIN, 0}};
    ::poll(events, std::size(events), kMilliseconds);
    read_output(process, lines);
    if (events[1].revents != 0) return false;
    signalfd_siginfo signal{};
    while (::read(signals_.get(), &signal, sizeof signal) == sizeof signal) {
      if (signal.ssi_signo == SIGCHLD) continue;
      stopped_by_ = static_cast<int>(signal.ssi_signo);
      return false;
    }
    return true;
  }

  /// As much as a pipe holds: a program that prints without end must not keep us here.
  static void read_output(const Process& process, LineSplitter& lines) {
    std::string bytes(64 * 1024, '\0');
    for (const Descriptor& stream : process.output) {
      const ssize_t count = ::read(stream.get(), bytes.data(), bytes.size());
      if (count > 0) lines.feed({bytes.data(), static_cast<std::size_t>(count)});
    }
  }

  int give_up() const {
    std::cerr << "lockstep: no training step was measured with " << counted(measured_[0].replicas, "replica") << ": "
              << measured_[0].not_measured << "\n";
    for (const auto& line : last_tail_) std::cerr << "  | " << line << "\n";
    std::cerr << "  help: the program must train with ls::MirroredStrategy on CPUs and an optimizer of "
                 "strategy.make_optimizer\n";
    return kProgramError;
  }

  const TuneCommand& command_;
  const int life_line_;
  Descriptor signals_;
  ReportFolder reports_;
  std::vector<ReplicaMeasurement> measured_;
  std::map<int, double> costs_;  ///< seconds of the last run with so many replicas
  std::string program_;
  int cores_ = 0;  ///< usable by the program, which may have fewer than this process
  std::vector<std::string> last_tail_;
  double round_seconds_ = 0;
  int stopped_by_ = 0;
  const Clock::time_point begun_ = Clock::now();
};

}  // namespace

int tune(const TuneCommand& command) {
  if (command.program.empty()) throw UsageError("name the program to measure: lockstep tune -- ./train --epochs 3");
  if (command.program[0].starts_with("-")) throw UsageError(str("unknown option '", command.program[0], "'"));
  return supervise([&](int life_line) { return Tuning(command, life_line).measure(); });
}

}  // namespace lockstep::app
