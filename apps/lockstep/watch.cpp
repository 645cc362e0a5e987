#include "apps/lockstep/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "apps/lockstep/plan.h"
#include "apps/lockstep/process.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/socket.h"

namespace lockstep::app {
namespace {

// Some tools send one request twice; a signal this much later is from an impatient user.
constexpr Seconds kImpatience{0.5};
// The launcher has ended, so there is nothing left to report the workers' exit to.
constexpr Seconds kAbandonedGrace{1};

struct Running {
  const Member& member;
  const int index;
  Process process;
  LineSplitter lines[Console::kStreams];
  Descriptor log;
  bool ended = false;
};

enum class Phase { Running, Ending, Failed, Stopping, Terminating, Killing };

class Watch {
 public:
  Watch(const std::vector<Member>& members, const WatchOptions& options, const Events& events, Console& console)
      : options_(options), events_(events), console_(console) {
    for (const Member& member : members) running_.push_back({member, static_cast<int>(running_.size())});
  }

  Attempt run(bool first_attempt) {
    for (Running& one : running_) start(one, first_attempt);
    while (attempt_.endings.size() < running_.size()) {
      wait_for_events();
      if (deadline_.expired()) escalate();
    }
    if (!kill_descendants(Deadline::after(options_.kill_after)))
      console_.say("a process that a worker has started cannot be killed; look for it with ps");
    for (Running& one : running_) finish_output(one);
    // A reader may be slow, but not if the user has already stopped the job.
    deadline_ = phase_ < Phase::Stopping ? Deadline::never() : Deadline::after(options_.kill_after);
    while (console_.waiting_for() >= 0 && phase_ != Phase::Killing && !deadline_.expired()) wait_for_events();
    return std::move(attempt_);
  }

  int pause(Seconds delay) {
    for (enter(Phase::Ending, delay); attempt_.stop_signal == 0 && !deadline_.expired();) wait_for_events();
    return attempt_.stop_signal;
  }

 private:
  void start(Running& one, bool first_attempt) {
    const Member& member = one.member;
    if (!options_.log_dir.empty()) {
      std::string name = member.label;
      std::ranges::replace(name, ' ', '-');
      const auto path = str(options_.log_dir, "/", name, ".log");
      const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (first_attempt ? O_TRUNC : 0);
      one.log = Descriptor(open(path.c_str(), flags, 0644));
      if (!one.log) throw UsageError(str("cannot write ", path, ": ", strerror(errno)));
    }
    try {
      one.process = start_process(member.argv, member.environment, !member.input.empty());
    } catch (...) {
      kill_descendants(Deadline::after(options_.kill_after));
      throw;
    }
    if (!member.input.empty()) send(one, member.input);
  }

  void wait_for_events() {
    std::vector<pollfd> waits{{events_.signals, POLLIN, 0},
                              {events_.life_line, POLLIN, 0},
                              {events_.input, POLLIN, 0},
                              {console_.waiting_for(), POLLOUT, 0}};
    const size_t first_output = waits.size();
    for (const auto& one : running_)
      for (const auto& output : one.process.output) waits.push_back({console_.full() ? -1 : output.get(), POLLIN, 0});
    if (poll(waits.data(), waits.size(), poll_milliseconds(deadline_)) < 0) return;
    for (size_t i = first_output; i < waits.size(); ++i)
      if (waits[i].revents != 0) pass_on(running_[(i - first_output) / 2], static_cast<int>((i - first_output) % 2));
    console_.write_some();
    if (console_.broken()) stop(SIGTERM, options_.kill_after);
    if (waits[0].revents != 0) take_signal();
    if (waits[1].revents != 0) listen_to(events_.life_line);
    if (waits[2].revents != 0) listen_to(events_.input);
  }

  // The process that started this job asks it to stop by writing something; if the descriptor ends, that process has
  // ended.
  void listen_to(int& source) {
    char bytes[256];
    const auto count = read(source, bytes, sizeof bytes);
    if (count > 0) stop(SIGTERM, options_.grace);
    if (count != 0) return;
    source = -1;
    stop(SIGTERM, kAbandonedGrace);
    // Even if it was stopping already, with more time.
    if (deadline_.remaining() > kAbandonedGrace) deadline_ = Deadline::after(kAbandonedGrace);
  }

  // True as long as there may be more.
  bool pass_on(Running& one, int stream) {
    char bytes[16 * 1024];
    Descriptor& output = one.process.output[stream];
    const auto count = read(output.get(), bytes, sizeof bytes);
    if (count > 0) print(one, stream, one.lines[stream].feed({bytes, static_cast<size_t>(count)}));
    if (count > 0 || (count < 0 && errno == EINTR)) return true;
    if (count < 0 && errno == EAGAIN) return false;
    output.close();
    print(one, stream, one.lines[stream].finish());
    return false;
  }

  void print(Running& one, int stream, const std::vector<std::string>& lines) {
    const auto prefix = one.member.prefixed ? console_.prefix(stream, one.index, one.member.label) : "";
    std::string shown, logged;
    for (const auto& line : lines) {
      if (!one.member.prefixed && line.starts_with("lockstep: worker ")) attempt_.is_explained = true;
      if (phase_ == Phase::Running) look_for_absent(line);
      shown.append(prefix).append(line).push_back('\n');
      if (one.log) logged.append(line).push_back('\n');
    }
    console_.add(stream, std::move(shown));
    if (!logged.empty() && write(one.log.get(), logged.data(), logged.size()) != std::ssize(logged)) {
      console_.say(str("the log of ", one.member.label, " is not written any more: ", strerror(errno)));
      one.log.close();
    }
  }

  // A worker that has ended will not join any more, so waiting for it is useless.
  void look_for_absent(const std::string& line) {
    for (const int worker : awaited_workers(line)) {
      const auto gone = std::ranges::find(attempt_.endings, str("worker ", worker), &Ending::name);
      if (gone == attempt_.endings.end()) continue;
      gone->never_joined = true;
      enter(Phase::Failed, Seconds(0));
    }
  }

  void finish_output(Running& one) {
    for (int stream = 0; stream < Console::kStreams; ++stream) {
      while (one.process.output[stream] && pass_on(one, stream)) {
      }
      print(one, stream, one.lines[stream].finish());
    }
    auto& ending = *std::ranges::find(attempt_.endings, one.index, &Ending::member);
    for (int stream = Console::kStreams; stream-- > 0 && ending.tail.empty();) ending.tail = one.lines[stream].tail();
  }

  void take_signal() {
    signalfd_siginfo info{};
    if (read(events_.signals, &info, sizeof info) != sizeof info) return;
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) return collect();
    if (signal == SIGUSR1 || signal == SIGUSR2) return tell_all(signal);
    if (phase_ != Phase::Stopping) return stop(signal, options_.grace);
    if (signal == SIGINT && Deadline::Clock::now() - stopped_at_ > kImpatience) kill_all();
  }

  void collect() {
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto one = std::ranges::find(running_, pid, [](const Running& r) { return r.process.pid; });
      if (one == running_.end()) continue;  // an orphaned grandchild
      one->ended = true;
      Ending ending{.member = one->index, .name = one->member.label, .host = one->member.host, .pid = pid};
      ending.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      ending.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
      ending.by_us = phase_ >= Phase::Stopping;
      ending.out_of_memory = !ending.by_us && ending.signal == SIGKILL && out_of_memory_kills() > memory_kills_;
      ending.after = Deadline::Clock::now() - started_;
      if (ending.failed() && phase_ == Phase::Running) enter(Phase::Failed, options_.failure_grace);
      attempt_.endings.push_back(std::move(ending));
    }
    const auto may_go_on = [](const Running& r) { return r.ended || r.member.ends_last; };
    if (phase_ == Phase::Running && std::ranges::all_of(running_, may_go_on)) enter(Phase::Ending, options_.grace);
  }

  void stop(int signal, Seconds grace) {
    if (phase_ >= Phase::Stopping) return;
    attempt_.stop_signal = signal;
    stopped_at_ = Deadline::Clock::now();
    enter(Phase::Stopping, grace);
    tell_all(signal);
  }

  void escalate() {
    if (phase_ > Phase::Failed) return kill_all();
    if (phase_ == Phase::Ending)
      console_.say(str("the evaluator did not end within ", options_.grace.count(), " s after the workers: stopped"));
    enter(Phase::Terminating, options_.kill_after);
    tell_all(SIGTERM);
  }

  void kill_all() {
    const auto left = std::ranges::count(running_, false, &Running::ended);
    if (phase_ == Phase::Stopping && left != 0)
      console_.say(str(counted(left, "worker"), " did not stop in time: killed"));
    deadline_ = Deadline::never();
    phase_ = Phase::Killing;
    tell_all(SIGKILL);
  }

  void tell_all(int signal) {
    for (const Running& one : running_) {
      const int translated = signal == SIGINT && one.member.stop_signal != 0 ? one.member.stop_signal : signal;
      if (one.ended) continue;
      // Another host's launcher gets a line; a signal would only end the ssh that transmits its last output.
      if (!one.process.input || signal == SIGKILL)
        kill(-one.process.pid, translated);
      else if (signal != SIGUSR1 && signal != SIGUSR2)
        send(one, "stop\n");
    }
  }

  void send(const Running& one, const std::string& text) {
    if (write(one.process.input.get(), text.data(), text.size()) != std::ssize(text))
      console_.say(str(one.member.label, " takes no input: ", strerror(errno)));
  }

  void enter(Phase phase, Seconds limit) {
    phase_ = phase;
    deadline_ = Deadline::after(limit);
  }

  const WatchOptions& options_;
  Events events_;
  Console& console_;
  std::vector<Running> running_;
  Attempt attempt_;
  Phase phase_ = Phase::Running;
  Deadline deadline_ = Deadline::never();
  const Deadline::Clock::time_point started_ = Deadline::Clock::now();
  Deadline::Clock::time_point stopped_at_;
  const long memory_kills_ = out_of_memory_kills();
};

}  // namespace

Attempt watch(const std::vector<Member>& members, const WatchOptions& options, const Events& events, Console& console,
              bool first_attempt) {
  return Watch(members, options, events, console).run(first_attempt);
}

int pause_for(Seconds delay, const Events& events, Console& console) {
  return Watch({}, {}, events, console).pause(delay);
}

}  // namespace lockstep::app
