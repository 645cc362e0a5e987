#include "lockstep/train/termination.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <mutex>

namespace lockstep::train::detail {
namespace {

// What the handler reads: it may run at any time, on any thread.
std::atomic<int> signals_seen{0};
static_assert(std::atomic<int>::is_always_lock_free);
struct sigaction handler_before;

void note_signal(int signal, siginfo_t* info, void* context) {
  signals_seen.fetch_add(1);
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) {
    handler_before.sa_sigaction(signal, info, context);
  } else if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN) {
    handler_before.sa_handler(signal);
  }
}

std::mutex& watches_mutex() {
  static std::mutex mutex;
  return mutex;
}
int watches = 0;

}  // namespace

TerminationWatch::TerminationWatch() : before_(signals_seen.load()) {
  const std::lock_guard lock(watches_mutex());
  if (watches++ > 0) return;
  ::sigaction(SIGTERM, nullptr, &handler_before);  // before the new one can be called
  struct sigaction mine {};
  mine.sa_sigaction = note_signal;
  mine.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&mine.sa_mask);
  ::sigaction(SIGTERM, &mine, nullptr);
}

TerminationWatch::~TerminationWatch() {
  const std::lock_guard lock(watches_mutex());
  if (--watches > 0) return;
  struct sigaction present {};
  ::sigaction(SIGTERM, nullptr, &present);
  const bool is_mine = (present.sa_flags & SA_SIGINFO) != 0 && present.sa_sigaction == note_signal;
  if (is_mine) ::sigaction(SIGTERM, &handler_before, nullptr);  // else the program has set its own meanwhile
}

bool TerminationWatch::is_requested() const { return signals_seen.load() > before_; }

void end_terminated_process() {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  ::_exit(kTerminatedStatus);
}

}  // namespace lockstep::train::detail
