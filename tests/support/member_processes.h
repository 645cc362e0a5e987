#pragma once

#include <fstream>
#include <string>

#include "tests/support/processes.h"

namespace lockstep::coordination {

/// A running member_program, started by the command `through` if there is one. It executes lines and answers each.
class MemberProcess : public Process {
 public:
  MemberProcess(int self, const Strings& addresses, const Strings& settings = {}, const Strings& through = {})
      : Process(words(self, addresses, settings, through), {}, {.input = true, .ends_by_itself = false}) {}

  /// The next line that begins with `start`; all lines are kept. Fails the test if it does not come.
  std::string await(const std::string& start, milliseconds limit = seconds(30)) {
    for (const auto deadline = Deadline::after(limit);;) {
      const bool was_running = is_running();
      const std::string text = output();
      for (std::size_t end; (end = text.find('\n', read_)) != text.npos;) {
        const std::string line = text.substr(read_, end - read_);
        read_ = end + 1;
        if (line.starts_with(start)) return line;
      }
      if (!was_running || deadline.expired()) break;
      ::poll(nullptr, 0, 2);
    }
    ADD_FAILURE() << "no line '" << start << "...' from pid " << pid() << "; all lines:\n" << output();
    return {};
  }

  std::string ask(const std::string& line) {
    send_line(line);
    return await_answer();
  }
  std::string await_answer() {
    for (;;) {
      const std::string line = await("");
      if (line.empty() || line.starts_with("ok") || line.starts_with("error")) return line;
    }
  }

  /// The number of a line of /proc/PID/status, "VmHWM" for instance.
  long status(const std::string& name) const {
    std::ifstream lines(str("/proc/", pid(), "/status"));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name + ":")) return std::stol(line.substr(name.size() + 1));
    }
    return -1;
  }
  /// All processor time it has used so far, in seconds.
  double cpu_seconds() const {
    std::ifstream stat(str("/proc/", pid(), "/stat"));
    std::string field;
    double user = 0, system = 0;
    std::getline(stat, field, ')');  // the name may contain anything
    for (int i = 0; i < 11; ++i) stat >> field;
    stat >> user >> system;
    return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }

 private:
  static Strings words(int self, const Strings& addresses, const Strings& settings, Strings words) {
    std::string list;
    for (const auto& address : addresses) list += str(list.empty() ? "" : ",", address);
    words.insert(words.end(), {LOCKSTEP_MEMBER_PROGRAM, std::to_string(self), list});
    words.insert(words.end(), settings.begin(), settings.end());
    return words;
  }

  std::size_t read_ = 0;  ///< position in its output
};

}  // namespace lockstep::coordination
