#pragma once

#include <signal.h>

namespace lockstep::engine {

/// Threads created meanwhile receive no signals: those belong to the program. Faults of the thread itself are not
/// blocked, so that a program's crash handler sees them.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t from_outside;
    ::sigfillset(&from_outside);
    for (const int fault : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP})
      ::sigdelset(&from_outside, fault);
    ::pthread_sigmask(SIG_SETMASK, &from_outside, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace lockstep::engine
