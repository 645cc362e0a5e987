#include "apps/lockstep/outcome.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iomanip>
#include <regex>
#include <sstream>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::app {
namespace {

constexpr std::string_view kErrorMark = "error[L";
constexpr int kAboutAnother[] = {errors::kPeerLost, errors::kPeerMissing, errors::kPeerFailed, errors::kChiefGone};

bool is_about_another(int number) { return std::ranges::count(kAboutAnother, number) != 0; }

bool is_crash(int signal) {
  return signal == SIGABRT || signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL ||
         signal == SIGTRAP || signal == SIGSYS;
}

// The first worker named after these words: "worker 2" in "worker 2 (host:2222)". Empty if there is none.
std::string worker_named_in(const std::string& line, const std::string& words = "") {
  std::smatch found;
  return std::regex_search(line, found, std::regex(words + R"((worker \d{1,9}))")) ? found[1].str() : "";
}

// The worker that its error is about, or the one that reported it, if different.
std::string named_by(const Ending& ending) {
  const int number = error_number(ending.tail);
  if (number == 0) return {};
  const auto lines = telling_lines(ending.tail);
  std::string name;
  if (is_about_another(number) || number == errors::kTimeout) name = worker_named_in(lines[0]);
  for (const auto& line : lines) {
    if (!name.empty() || is_about_another(number)) break;
    name = worker_named_in(line, "reported by ");
  }
  return name == ending.name ? "" : name;
}

int code_of(const Ending& ending) {
  if (ending.never_joined && ending.exit_code == 0) return kProgramError;
  if (ending.signal == 0) return ending.exit_code;
  return is_crash(ending.signal) ? kProgramError : kPeerLost;
}

// A worker that could not save, for instance, while the user stopped the job.
bool failed_to_stop(const Ending& ending, int stop_signal) {
  if (stop_signal == 0) return false;
  if (ending.signal != 0) return is_crash(ending.signal);
  return ending.exit_code != kStopped && ending.exit_code != 128 + stop_signal && !is_consequence(ending);
}

auto last_error(const std::vector<std::string>& tail) {
  return std::find_if(tail.rbegin(), tail.rend(), [](const auto& line) { return line.find(kErrorMark) != line.npos; });
}

std::string advice(const Ending& ending) {
  if (ending.out_of_memory) return "use fewer workers or a smaller batch, or raise the memory limit";
  if (ending.signal == SIGKILL) return "somebody or a batch system killed it; the kernel reports no lack of memory";
  if (is_crash(ending.signal)) return "the program crashed: run it under a debugger, or look at its core file";
  if (ending.never_joined)
    return "let every worker make the strategy: what ends the program before that must come to the same answer on all";
  if (const int number = error_number(ending.tail); number != 0) return str("lockstep explain L", number);
  return "";
}

}  // namespace

std::vector<int> awaited_workers(const std::string& line) {
  const auto begin = line.find(": waiting for ");
  if (begin == line.npos) return {};
  // Present workers are named without their addresses, and so are those that others wait for at the end.
  static const std::regex with_address(R"(worker (\d{1,9}) \()");
  std::vector<int> workers;
  const auto from = line.begin() + static_cast<std::ptrdiff_t>(begin);
  for (std::sregex_iterator found(from, line.end(), with_address), end; found != end; ++found)
    workers.push_back(std::stoi(found->str(1)));
  return workers;
}

int error_number(const std::vector<std::string>& tail) {
  const auto line = last_error(tail);
  if (line == tail.rend()) return 0;
  int number = 0;
  const auto digits = line->find(kErrorMark) + kErrorMark.size();
  std::from_chars(line->data() + digits, line->data() + line->size(), number);
  return number;
}

std::vector<std::string> telling_lines(const std::vector<std::string>& tail) {
  const auto line = last_error(tail);
  return line == tail.rend() ? tail : std::vector<std::string>(line.base() - 1, tail.end());
}

// An uncaught exception ends a program with SIGABRT, even if it reports the failure of another worker.
bool is_consequence(const Ending& ending) {
  if (ending.signal == 0 && ending.exit_code == kPeerLost) return true;
  return (ending.signal == 0 || ending.signal == SIGABRT) &&
         (is_about_another(error_number(ending.tail)) || !named_by(ending).empty());
}

const Ending* root_cause(const Attempt& attempt) {
  const Ending* consequence = nullptr;
  for (const auto& ending : attempt.endings) {
    if (!ending.failed() || (ending.by_us && !failed_to_stop(ending, attempt.stop_signal))) continue;
    if (!is_consequence(ending)) return &ending;
    if (!consequence) consequence = &ending;
  }
  return consequence;
}

const Ending* culprit(const Attempt& attempt, const Ending& cause) {
  const auto found = std::ranges::find(attempt.endings, named_by(cause), &Ending::name);
  return is_consequence(cause) && found != attempt.endings.end() ? &*found : nullptr;
}

int exit_code(const Attempt& attempt) {
  if (const auto* cause = root_cause(attempt)) {
    const auto* lost = culprit(attempt, *cause);
    return lost != nullptr && lost->by_us ? kPeerLost : code_of(*cause);
  }
  // Without the user's signal, the launcher stopped an evaluator after all workers had ended well.
  if (attempt.stop_signal == 0 || std::ranges::none_of(attempt.endings, &Ending::failed)) return kOk;
  return attempt.stop_signal == SIGINT ? kInterrupted : kStopped;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? str("SIG", name) : str("signal ", signal);
}

std::string how_it_ended(const Ending& ending) {
  if (ending.out_of_memory) return str("was killed by ", signal_name(ending.signal), " because memory ran out");
  if (is_crash(ending.signal)) return str("crashed with ", signal_name(ending.signal));
  if (ending.signal != 0) return str("was killed by ", signal_name(ending.signal));
  return str("exited with code ", ending.exit_code);
}

std::string describe(const Ending& cause, const Ending* culprit) {
  const Ending& who = culprit ? *culprit : cause;
  const bool hung = culprit && culprit->by_us, early = culprit && !hung && !culprit->failed();
  std::ostringstream out;
  out << "lockstep: " << who.name << " (pid " << who.pid << (who.host.empty() ? "" : " on ") << who.host << ") "
      << (hung ? "did not answer and was stopped" : how_it_ended(who))
      << (who.never_joined ? " before it joined the others"
          : early          ? " before the job was done"
                           : "")
      << ", " << std::fixed << std::setprecision(1) << who.after.count() << " s after its start\n";
  for (const auto& line : telling_lines(cause.tail))
    out << "  | " << (culprit ? "[" + cause.name + "] " : "") << line << "\n";
  if (const auto help = advice(cause); !help.empty()) out << "  help: " << help << "\n";
  return out.str();
}

Next next_step(const Attempt& attempt, const RestartPolicy& policy, int restarts_done, int port_retries_done) {
  const auto* cause = root_cause(attempt);
  if (!cause || attempt.stop_signal != 0) return Next::Finish;
  // Data ports are free ones unless the program chooses them, in which case it would choose them again.
  const bool took_port = error_number(cause->tail) == errors::kPortInUse &&
                         telling_lines(cause->tail).front().find("data port") == std::string::npos;
  if (took_port && port_retries_done < policy.port_retries) return Next::NewPorts;
  const int code = code_of(*cause);
  if (code == kUsage || code == kStopped || restarts_done >= policy.restarts) return Next::Finish;
  return Next::Restart;
}

Seconds restart_delay(int restarts_done) { return std::min(Seconds(60), Seconds(std::exp2(restarts_done))); }

}  // namespace lockstep::app
