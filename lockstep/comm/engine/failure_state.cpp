#include "lockstep/comm/engine/failure_state.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <new>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"

namespace lockstep::engine {

void FailureState::set(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = error;
  is_set_.store(true, std::memory_order_release);
  changed_.notify_all();
  signal_event(event_.get());
}

Error FailureState::get(const std::string& collective) const {
  const std::lock_guard lock(mutex_);
  Error error = *error_;
  if (!collective.empty() && error.text().where.empty()) error.add_where(collective);
  return error;
}

void FailureState::throw_if_set() const {
  if (is_set()) throw_error(get());
}

void FailureState::lost(int rank, const std::string& seen) {
  std::unique_lock lock(mutex_);
  int& closed = closed_[static_cast<std::size_t>(rank)];
  ++closed;
  changed_.notify_all();
  changed_.wait_for(lock, std::chrono::milliseconds(40), [&] { return error_ || closed == channels_; });
  lock.unlock();
  set(Unavailable(errors::kPeerLost, {.what = str("worker ", rank, " stopped answering"),
                                      .seen = seen,
                                      .help = str("look at worker ", rank, "'s log for why it ended")}));
  throw_error(get());
}

Descriptor make_event() {
  Descriptor event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event)
    throw ResourceExhausted(errors::kNoThreads, {.what = "the system does not give the data engine an eventfd",
                                                 .help = "raise the limit of open files (ulimit -n)"});
  return event;
}

void signal_event(int event) {
  const std::uint64_t one = 1;
  while (::write(event, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return {Code::ResourceExhausted,
            errors::kInternal,
            {.what = "out of memory in the data engine",
             .help = "use smaller buckets (bytes_per_pack) or fewer workers per machine"}};
  } catch (const std::exception& error) {
    return {Code::Internal,
            errors::kInternal,
            {.what = error.what(), .help = "this is a bug in Lockstep: please report it"}};
  }
}

}  // namespace lockstep::engine
