#include "lockstep/comm/engine/tcp/failure_state.h"

#include <chrono>

#include "lockstep/base/text.h"

namespace lockstep::engine {

void FailureState::set(const lockstep_status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (status_) return;
    status_ = status;
    is_set_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  if (wake_) wake_();
}

lockstep_status FailureState::get() const {
  const std::lock_guard lock(mutex_);
  return *status_;
}

void FailureState::lost(int rank, const std::string& during, const std::string& seen) {
  {
    std::unique_lock lock(mutex_);
    ++closed_[static_cast<std::size_t>(rank)];
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::milliseconds(40),
                      [&] { return status_ || closed_[static_cast<std::size_t>(rank)] == channels_; });
  }
  set(make_status(Code::Unavailable, errors::kPeerLost,
                  {.what = str("worker ", rank, " stopped answering", during.empty() ? "" : " during ", during),
                   .seen = seen,
                   .help = str("look at worker ", rank, "'s log for why it ended")},
                  rank));
  throw Failure(get());
}

}  // namespace lockstep::engine
