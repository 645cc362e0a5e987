#pragma once

#include <stdexcept>

#include "tests/support/processes.h"

namespace lockstep {

/// One run of the launcher, with its output.
class Launch : public Process {
 public:
  explicit Launch(Strings arguments, const Strings& variables = {})
      : Process((arguments.insert(arguments.begin(), LOCKSTEP_PROGRAM), std::move(arguments)), variables,
                {.streams_apart = true}) {}

  std::string out() const { return output(); }
  std::string err() const { return complained(); }
};

inline Strings run(int workers, const Strings& script, const Strings& options = {}) {
  Strings arguments{"run", "-n", std::to_string(workers)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.push_back(LOCKSTEP_TEST_WORKER);
  arguments.insert(arguments.end(), script.begin(), script.end());
  return arguments;
}

inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++found;
  return found;
}

/// The processes that left a file in the folder, once there are `count` of them.
inline std::vector<pid_t> processes(const TemporaryFolder& folder, int count) {
  std::vector<pid_t> pids;
  for (const auto deadline = Deadline::after(seconds(20)); std::ssize(pids) < count; poll(nullptr, 0, 5)) {
    if (deadline.expired()) throw std::runtime_error("the workers do not start");
    pids.clear();
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      pids.push_back(std::stoi(entry.path().filename().string()));
  }
  return pids;
}

inline const std::string kTerm = std::to_string(SIGTERM), kInt = std::to_string(SIGINT);

}  // namespace lockstep
