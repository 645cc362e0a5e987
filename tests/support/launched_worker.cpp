// A worker for the launcher's tests. Executes its arguments in order:
//
//   print TEXT | error TEXT | partial TEXT | lines N | sleep S | exit N | abort | kill SIGNAL
//   only WORKER (the rest is only for that worker) | role TYPE (only for tasks of that type) | generation N (only for
// that attempt)
//   pid FOLDER (leaves a file named after its process) | child FOLDER (likewise, a child that sleeps)
//   daemon FOLDER (a child in a separate session) | ignore SIGNAL | leave SIGNAL CODE (exits with it on the signal)
//   count SIGNAL FILE (adds a byte to the file on each signal) | environment NAME

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

namespace {

volatile int leave_code = 0;
volatile int count_file = -1;

void touch(const std::string& folder, pid_t pid) {
  close(open((folder + "/" + std::to_string(pid)).c_str(), O_CREAT | O_WRONLY, 0644));
}

void start_child(const std::string& folder, bool new_session) {
  if (fork() == 0) {
    if (new_session) setsid();
    touch(folder, getpid());
    sleep(100);
    _exit(0);
  }
}

// Continues to sleep when interrupted by signals.
void sleep_for(double seconds) {
  timespec left{static_cast<time_t>(seconds),
                static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  while (nanosleep(&left, &left) != 0) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* config = getenv("TF_CONFIG");
  const auto self = config ? nlohmann::json::parse(config)["task"] : nlohmann::json{{"index", -1}, {"type", ""}};
  const auto task = self["index"].get<int>();
  for (int i = 1; i < argc; ++i) {
    const std::string what = argv[i];
    const auto next = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    if (what == "print") printf("%s\n", next().c_str());
    if (what == "error") fprintf(stderr, "%s\n", next().c_str());
    if (what == "partial") printf("%s", next().c_str());
    if (what == "abort") abort();
    if (what == "sleep") fflush(stdout), sleep_for(atof(next().c_str()));
    if (what == "exit") return atoi(next().c_str());
    if (what == "kill") raise(atoi(next().c_str()));
    if (what == "only" && task != atoi(next().c_str())) return 0;
    if (what == "role" && self["type"] != next()) return 0;
    if (what == "generation" && getenv("LOCKSTEP_GENERATION") != next()) return 0;
    if (what == "pid") touch(next(), getpid());
    if (what == "child" || what == "daemon") start_child(next(), what == "daemon");
    if (what == "ignore") signal(atoi(next().c_str()), SIG_IGN);
    if (what == "environment") printf("%s\n", getenv(next().c_str()));
    if (what == "lines") {
      for (int line = 0, count = atoi(next().c_str()); line < count; ++line)
        fprintf(line % 2 ? stderr : stdout, "%d:%d %s\n", task, line, std::string(line % 97, 'x').c_str());
    }
    if (what == "leave") {
      const int number = atoi(next().c_str());
      leave_code = atoi(next().c_str());
      signal(number, [](int) { _exit(leave_code); });
    }
    if (what == "count") {
      const int number = atoi(next().c_str());
      count_file = open(next().c_str(), O_CREAT | O_WRONLY | O_APPEND, 0644);
      signal(number, [](int) { [[maybe_unused]] const auto ignored = write(count_file, "x", 1); });
    }
  }
  return 0;
}
