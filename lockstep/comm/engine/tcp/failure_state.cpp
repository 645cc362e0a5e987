#include "lockstep/comm/engine/tcp/failure_state.h"

#include <chrono>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/tcp/channel.h"

namespace lockstep::engine {

void FailureState::add(Channel& channel) {
  const std::lock_guard lock(mutex_);
  woken_.push_back(&channel);
}

void FailureState::remove(Channel& channel) {
  const std::lock_guard lock(mutex_);
  std::erase(woken_, &channel);
}

void FailureState::set(const lockstep_status& status) {
  const std::lock_guard lock(mutex_);
  if (status_) return;
  status_ = status;
  is_set_.store(true, std::memory_order_release);
  changed_.notify_all();
  for (Channel* const channel : woken_) channel->wake();
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
    // A channel that has nothing to do leaves it to one that can say what was under way.
    const auto is_certain = [&] { return !during.empty() && closed_[static_cast<std::size_t>(rank)] == channels_; };
    changed_.wait_for(lock, std::chrono::milliseconds(40), [&] { return status_ || is_certain(); });
  }
  set(make_status(Code::Unavailable, errors::kPeerLost,
                  {.what = str("worker ", rank, " stopped answering", during.empty() ? "" : " during ", during),
                   .seen = seen,
                   .help = str("look at worker ", rank, "'s log for why it ended")},
                  rank));
  throw Failure(get());
}

}  // namespace lockstep::engine
